//! Sampling parameters on the wire.

use lockstep_types::sampling::{InvalidField, LogprobParams, SamplingParams, TokenLogprob};

use crate::{WireError, mirror::mirror, pb::lockstep as pb};

mirror!(LogprobParams {
    output: filled,
    top: filled,
    prompt_start
});

impl TryFrom<pb::SamplingParams> for SamplingParams {
    type Error = WireError;

    /// Fills in the defaults of absent fields. The seed must be present, because only the
    /// process that received the client's request may draw one.
    fn try_from(wire: pb::SamplingParams) -> Result<Self, WireError> {
        let default = Self::default();
        let top_k = match wire.top_k.unwrap_or(-1) {
            -1 => 0,
            k => u32::try_from(k)
                .ok()
                .filter(|k| *k > 0)
                .ok_or_else(|| InvalidField {
                    field: "top_k",
                    message: format!("{k} is neither -1 (all) nor positive"),
                })?,
        };
        Ok(Self {
            temperature: wire.temperature.unwrap_or(default.temperature),
            top_p: wire.top_p.unwrap_or(default.top_p),
            top_k,
            min_p: wire.min_p.unwrap_or(default.min_p),
            presence_penalty: wire.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: wire.frequency_penalty.unwrap_or(default.frequency_penalty),
            repetition_penalty: wire
                .repetition_penalty
                .unwrap_or(default.repetition_penalty),
            logit_bias: {
                let mut bias: Vec<_> = wire.logit_bias.into_iter().collect();
                bias.sort_by_key(|(id, _)| *id);
                bias
            },
            seed: wire.seed.ok_or(WireError::Missing("seed"))?,
            min_new_tokens: wire.min_new_tokens.unwrap_or(0),
            stop_token_ids: wire.stop_token_ids,
            ignore_eos: wire.ignore_eos.unwrap_or(false),
        })
    }
}

impl From<SamplingParams> for pb::SamplingParams {
    fn from(params: SamplingParams) -> Self {
        Self {
            temperature: Some(params.temperature),
            top_p: Some(params.top_p),
            top_k: Some(if params.top_k == 0 {
                -1
            } else {
                params.top_k.cast_signed()
            }),
            min_p: Some(params.min_p),
            presence_penalty: Some(params.presence_penalty),
            frequency_penalty: Some(params.frequency_penalty),
            repetition_penalty: Some(params.repetition_penalty),
            logit_bias: params.logit_bias.into_iter().collect(),
            seed: Some(params.seed),
            min_new_tokens: Some(params.min_new_tokens),
            stop_token_ids: params.stop_token_ids,
            ignore_eos: Some(params.ignore_eos),
        }
    }
}

impl From<TokenLogprob> for pb::TokenLogprob {
    fn from(value: TokenLogprob) -> Self {
        let (top_ids, top_logprobs) = value.top.into_iter().unzip();
        Self {
            token_id: value.token_id,
            logprob: value.logprob,
            top_ids,
            top_logprobs,
        }
    }
}

impl From<pb::TokenLogprob> for TokenLogprob {
    fn from(wire: pb::TokenLogprob) -> Self {
        let top = wire.top_ids.into_iter().zip(wire.top_logprobs).collect();
        Self {
            token_id: wire.token_id,
            logprob: wire.logprob,
            top,
        }
    }
}

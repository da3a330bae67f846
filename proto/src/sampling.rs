//! How a request's tokens are chosen and what is reported of them.

use crate::{WireError, pb::lockstep as pb};

/// How one request's next token is chosen; all defaults are resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 means greedy.
    pub temperature: f32,
    /// Nucleus: the smallest set whose probability reaches it, in (0, 1].
    pub top_p: f32,
    /// The `k` most likely tokens only; 0 means all.
    pub top_k: u32,
    /// Tokens less likely than `min_p` times the most likely one are dropped.
    pub min_p: f32,
    /// Subtracted once from the logit of every token already in the output.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// Added to single logits; sorted by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the counter-based generator; the counter is the output position.
    pub seed: u64,
    /// End and stop tokens are masked until so many tokens are out.
    pub min_new_tokens: u32,
    /// Tokens that end the request, sorted: the request's own and, unless
    /// `ignore_eos`, the model's.
    pub stop_token_ids: Vec<u32>,
    /// The model's own end tokens do not end the request.
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            min_new_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
        }
    }
}

impl SamplingParams {
    /// The most likely token, always.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }
    /// Whether any penalty looks at earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }
    /// Checks ranges and sorts the lists.
    ///
    /// # Errors
    /// [`WireError::Invalid`] names the first field outside its range.
    pub fn validated(mut self, vocab_size: u32) -> Result<Self, WireError> {
        let range = |field, value: f32, low: f32, high: f32, open_low: bool| {
            let ok =
                value.is_finite() && value <= high && (value > low || (!open_low && value == low));
            let open = if open_low { "(" } else { "[" };
            ok.then_some(()).ok_or_else(|| WireError::Invalid {
                field,
                message: format!("{value} is not in {open}{low}, {high}]"),
            })
        };
        range("temperature", self.temperature, 0.0, 100.0, false)?;
        range("top_p", self.top_p, 0.0, 1.0, true)?;
        range("min_p", self.min_p, 0.0, 1.0, false)?;
        range("presence_penalty", self.presence_penalty, -2.0, 2.0, false)?;
        range(
            "frequency_penalty",
            self.frequency_penalty,
            -2.0,
            2.0,
            false,
        )?;
        range(
            "repetition_penalty",
            self.repetition_penalty,
            0.0,
            2.0,
            true,
        )?;
        for (id, bias) in &self.logit_bias {
            range("logit_bias", *bias, -100.0, 100.0, false)?;
            token_in_vocabulary("logit_bias", *id, vocab_size)?;
        }
        for id in &self.stop_token_ids {
            token_in_vocabulary("stop_token_ids", *id, vocab_size)?;
        }
        self.logit_bias.sort_by_key(|(id, _)| *id);
        self.logit_bias.dedup_by_key(|(id, _)| *id);
        self.stop_token_ids.sort_unstable();
        self.stop_token_ids.dedup();
        Ok(self)
    }
}

/// Checks one token id against the vocabulary.
///
/// # Errors
/// [`WireError::Invalid`] when the id is not a token of the model.
pub fn token_in_vocabulary(field: &'static str, id: u32, vocab_size: u32) -> Result<(), WireError> {
    if id < vocab_size {
        return Ok(());
    }
    Err(WireError::Invalid {
        field,
        message: format!(
            "token id {id} is not in the vocabulary (0 to {})",
            vocab_size - 1
        ),
    })
}

impl TryFrom<pb::SamplingParams> for SamplingParams {
    type Error = WireError;

    /// Fills in the defaults of absent fields; a seed must be there, since
    /// only the process that met the client may draw one.
    fn try_from(wire: pb::SamplingParams) -> Result<Self, WireError> {
        let default = Self::default();
        let top_k = match wire.top_k.unwrap_or(-1) {
            -1 => 0,
            k => u32::try_from(k)
                .ok()
                .filter(|k| *k > 0)
                .ok_or_else(|| WireError::Invalid {
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

impl From<&SamplingParams> for pb::SamplingParams {
    fn from(params: &SamplingParams) -> Self {
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
            logit_bias: params.logit_bias.iter().copied().collect(),
            seed: Some(params.seed),
            min_new_tokens: Some(params.min_new_tokens),
            stop_token_ids: params.stop_token_ids.clone(),
            ignore_eos: Some(params.ignore_eos),
        }
    }
}

/// What is reported about token probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogprobParams {
    /// Report the log-probability of each output token.
    pub output: bool,
    /// Alternatives per reported position.
    pub top: u32,
    /// Report prompt positions from here on; `None` = none.
    pub prompt_start: Option<u32>,
}

impl From<pb::LogprobParams> for LogprobParams {
    fn from(wire: pb::LogprobParams) -> Self {
        Self {
            output: wire.output.unwrap_or(false),
            top: wire.top.unwrap_or(0),
            prompt_start: wire.prompt_start,
        }
    }
}

impl From<LogprobParams> for pb::LogprobParams {
    fn from(params: LogprobParams) -> Self {
        Self {
            output: Some(params.output),
            top: Some(params.top),
            prompt_start: params.prompt_start,
        }
    }
}

/// One token's log-probability (natural logarithm) and its alternatives,
/// most likely first. Log-probabilities are those of the model at temperature
/// 1, before penalties, bias and truncation, as OpenAI's and SGLang's are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token at this position.
    pub token_id: u32,
    /// `None` for the first token of a prompt, which nothing precedes.
    pub logprob: Option<f32>,
    /// The most likely tokens here: (id, log-probability).
    pub top: Vec<(u32, f32)>,
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

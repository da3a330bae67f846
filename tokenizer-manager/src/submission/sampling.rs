//! Sampling parameters from a draft.

use lockstep_types::sampling::SamplingParams;

use super::{
    Fields, SamplingDraft,
    check::{count, decimal, integer},
};
use crate::{
    engine::Engine,
    error::{ApiError, ApiResult},
};

/// Checks every parameter and fills in what was left out. The seed is set per choice.
pub(super) fn resolve(
    draft: &SamplingDraft,
    fields: &Fields,
    engine: &Engine,
) -> ApiResult<SamplingParams> {
    let limits = &engine.config.server.limits.request;
    for (field, len, most) in [
        ("logit_bias", draft.logit_bias.len(), limits.logit_bias),
        (
            "stop_token_ids",
            draft.stop_token_ids.len(),
            limits.stop_token_ids,
        ),
    ] {
        count(&fields.name(field), len, most)?;
    }
    let top_k = draft.top_k.unwrap_or(0);
    let top_k = integer(&fields.name("top_k"), top_k, -1, i64::from(i32::MAX))?;
    let min_field = fields.name(draft.min_tokens_field);
    let min_new_tokens = super::non_negative(&min_field, draft.min_tokens.unwrap_or(0))?;
    let params = SamplingParams {
        // -1 and 0 both mean all.
        top_k: u32::try_from(top_k).unwrap_or(0),
        logit_bias: logit_bias(draft, fields)?,
        seed: 0,
        min_new_tokens,
        stop_token_ids: stop_tokens(draft, engine),
        ignore_eos: draft.ignore_eos,
        ..decimals(draft, fields)?
    };
    // The contract's own check, which also sorts; ranges were named above.
    params.validated(vocabulary(engine)).map_err(ApiError::from)
}

/// The parameters that are decimal numbers.
fn decimals(draft: &SamplingDraft, fields: &Fields) -> ApiResult<SamplingParams> {
    let default = SamplingParams::default();
    let within = |field: &'static str, value: Option<f64>, default: f32, range: Range| {
        let Range(low, high, open_low) = range;
        value.map_or(Ok(default), |value| {
            decimal(&fields.name(field), value, low, high, open_low).map(|value| value as f32)
        })
    };
    let penalty = Range(-2.0, 2.0, false);
    Ok(SamplingParams {
        temperature: within(
            "temperature",
            draft.temperature,
            default.temperature,
            Range(0.0, 2.0, false),
        )?,
        top_p: within("top_p", draft.top_p, default.top_p, Range(0.0, 1.0, true))?,
        min_p: within("min_p", draft.min_p, default.min_p, Range(0.0, 1.0, false))?,
        presence_penalty: within(
            "presence_penalty",
            draft.presence_penalty,
            default.presence_penalty,
            penalty,
        )?,
        frequency_penalty: within(
            "frequency_penalty",
            draft.frequency_penalty,
            default.frequency_penalty,
            penalty,
        )?,
        repetition_penalty: within(
            "repetition_penalty",
            draft.repetition_penalty,
            default.repetition_penalty,
            Range(0.0, 2.0, true),
        )?,
        ..default
    })
}

/// From, to (inclusive), and whether the lower end itself is left out.
#[derive(Clone, Copy)]
struct Range(f64, f64, bool);

/// Rows of the model's embedding table: ids below are tokens.
pub(super) fn vocabulary(engine: &Engine) -> u32 {
    u32::try_from(engine.config.model.vocab_size).unwrap_or(u32::MAX)
}

fn logit_bias(draft: &SamplingDraft, fields: &Fields) -> ApiResult<Vec<(u32, f32)>> {
    let name = fields.name("logit_bias");
    draft
        .logit_bias
        .iter()
        .map(|(id, bias)| {
            decimal(&name, *bias, -100.0, 100.0, false).map(|bias| (*id, bias as f32))
        })
        .collect()
}

/// The request's own end tokens and, unless they are ignored, the model's.
fn stop_tokens(draft: &SamplingDraft, engine: &Engine) -> Vec<u32> {
    let mut ids = draft.stop_token_ids.clone();
    if !draft.ignore_eos {
        ids.extend(&engine.config.model.eos_token_ids);
    }
    ids
}

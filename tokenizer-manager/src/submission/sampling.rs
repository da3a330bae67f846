//! Sampling parameters as an API received them, and their checks.

use lockstep_types::{EngineConfig, RequestLimits, sampling::SamplingParams};

use super::{
    FieldNames,
    check::{count, decimal, integer, non_negative},
};
use crate::error::{ApiError, ApiResult};

/// Sampling parameters as a client gave them; `None` = not given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingSpec {
    /// Temperature in [0, 2]; 0 = greedy.
    pub temperature: Option<f64>,
    /// Size of the nucleus, in (0, 1].
    pub top_p: Option<f64>,
    /// Number of most likely tokens kept; -1 or 0 = all.
    pub top_k: Option<i64>,
    /// Minimum probability relative to the most likely token, in [0, 1].
    pub min_p: Option<f64>,
    /// Penalty in [-2, 2], once for every token already in the output.
    pub presence_penalty: Option<f64>,
    /// Penalty in [-2, 2], for each occurrence in the output.
    pub frequency_penalty: Option<f64>,
    /// Factor in (0, 2] on the logits of tokens seen.
    pub repetition_penalty: Option<f64>,
    /// Pairs of token id and bias in [-100, 100].
    pub logit_bias: Vec<(u32, f64)>,
    /// Seed; drawn at random if absent.
    pub seed: Option<u64>,
    /// Number of output tokens before which no end or stop token is sampled.
    pub min_tokens: Option<i64>,
    /// Token ids that end the output, besides the model's end tokens.
    pub stop_token_ids: Vec<u32>,
    /// True if the model's own end tokens do not end the output.
    pub ignore_eos: bool,
    /// The API's name of `min_tokens`, for error messages.
    pub min_tokens_field: &'static str,
}

/// Checks the lengths of lists.
pub(super) fn lengths(
    spec: &SamplingSpec,
    fields: &FieldNames,
    limits: &RequestLimits,
) -> ApiResult<()> {
    for (field, len, most) in [
        ("logit_bias", spec.logit_bias.len(), limits.logit_bias),
        (
            "stop_token_ids",
            spec.stop_token_ids.len(),
            limits.stop_token_ids,
        ),
    ] {
        count(&fields.name(field), len, most)?;
    }
    Ok(())
}

/// Checks every parameter but the lengths of lists, and fills in defaults. The seed is set per choice.
pub(super) fn resolve(
    spec: &SamplingSpec,
    fields: &FieldNames,
    config: &EngineConfig,
) -> ApiResult<SamplingParams> {
    let top_k = spec.top_k.unwrap_or(0);
    let top_k = integer(&fields.name("top_k"), top_k, -1, i64::from(i32::MAX))?;
    let min_field = fields.name(spec.min_tokens_field);
    let min_new_tokens = non_negative(&min_field, spec.min_tokens.unwrap_or(0))?;
    let logit_bias = logit_bias(spec, fields)?;
    let default = SamplingParams::default();
    let within = |field, value, default, range| within(&fields.name(field), value, default, range);
    let params = SamplingParams {
        temperature: within(
            "temperature",
            spec.temperature,
            default.temperature,
            Range(0.0, 2.0, false),
        )?,
        top_p: within("top_p", spec.top_p, default.top_p, Range(0.0, 1.0, true))?,
        // -1 and 0 both mean all.
        top_k: u32::try_from(top_k).unwrap_or(0),
        min_p: within("min_p", spec.min_p, default.min_p, Range(0.0, 1.0, false))?,
        presence_penalty: within(
            "presence_penalty",
            spec.presence_penalty,
            default.presence_penalty,
            PENALTY,
        )?,
        frequency_penalty: within(
            "frequency_penalty",
            spec.frequency_penalty,
            default.frequency_penalty,
            PENALTY,
        )?,
        repetition_penalty: within(
            "repetition_penalty",
            spec.repetition_penalty,
            default.repetition_penalty,
            Range(0.0, 2.0, true),
        )?,
        logit_bias,
        seed: 0,
        min_new_tokens,
        stop_token_ids: stop_tokens(spec, config),
        ignore_eos: spec.ignore_eos,
    };
    // Repeats the range checks without field names, and sorts the lists.
    params.validated(vocabulary(config)).map_err(ApiError::from)
}

/// Lower bound, upper bound (inclusive), and true if the lower bound is excluded.
#[derive(Clone, Copy)]
struct Range(f64, f64, bool);

/// Range of presence and frequency penalties.
const PENALTY: Range = Range(-2.0, 2.0, false);

/// Checks a decimal number against its range, or returns the default.
fn within(name: &str, value: Option<f64>, default: f32, range: Range) -> ApiResult<f32> {
    let Range(low, high, open_low) = range;
    value.map_or(Ok(default), |value| {
        decimal(name, value, low, high, open_low).map(|value| value as f32)
    })
}

/// Returns the vocabulary size: valid token ids are below it.
pub(super) fn vocabulary(config: &EngineConfig) -> u32 {
    u32::try_from(config.model.vocab_size).unwrap_or(u32::MAX)
}

fn logit_bias(spec: &SamplingSpec, fields: &FieldNames) -> ApiResult<Vec<(u32, f32)>> {
    let name = fields.name("logit_bias");
    spec.logit_bias
        .iter()
        .map(|(id, bias)| {
            decimal(&name, *bias, -100.0, 100.0, false).map(|bias| (*id, bias as f32))
        })
        .collect()
}

/// Returns the request's own end tokens and, unless ignored, the model's.
fn stop_tokens(spec: &SamplingSpec, config: &EngineConfig) -> Vec<u32> {
    let mut ids = spec.stop_token_ids.clone();
    if !spec.ignore_eos {
        ids.extend(&config.model.eos_token_ids);
    }
    ids
}

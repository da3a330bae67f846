//! Memory for log-probabilities, which may be a thousand times as large as the request.

use std::sync::Arc;

use lockstep_ports::{RequestMemory, Reservation};
use lockstep_types::sampling::{LogprobParams, check_logprobs};

use super::{GenerateSpec, MaxTokens};
use crate::error::{ApiError, ApiResult};

/// Reserves memory for the log-probabilities of `n` choices for each prompt, within the
/// memory that the request has `held`. Returns one reserve per choice, the first
/// prompt's choices first; empty if nothing is held.
///
/// # Errors
/// 400 for more memory than one request may ever have, 429 if there is not enough
/// memory now.
pub(super) fn reserve(
    held: Option<&RequestMemory>,
    spec: &GenerateSpec,
    (logprobs, n): (LogprobParams, usize),
    prompts: &[Arc<[u32]>],
    lengths: &[u32],
) -> ApiResult<Vec<Reservation>> {
    let is_limited = spec.max_tokens != MaxTokens::Rest;
    let choice = |(prompt, tokens): (&Arc<[u32]>, &u32)| {
        let bytes = logprobs.reserve(prompt.len(), *tokens, is_limited);
        std::iter::repeat_n(bytes, n)
    };
    let choices: Vec<usize> = prompts.iter().zip(lengths).flat_map(choice).collect();
    let sum = choices
        .iter()
        .fold(0usize, |sum, bytes| sum.saturating_add(*bytes));
    check_logprobs(sum, held.map_or(usize::MAX, RequestMemory::most)).map_err(|error| {
        let field = spec.logprobs.top_field.as_ref();
        let message = format!(
            "Invalid '{field}': {error}. Ask for fewer choices, tokens ('{}') or alternatives \
             ('{field}').",
            spec.fields.max_tokens
        );
        ApiError::invalid(field, message)
    })?;
    let reserves = held.map(|held| held.reserve(&choices)).transpose()?;
    Ok(reserves.unwrap_or_default())
}

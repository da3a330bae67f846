//! Room for log-probabilities, which can be a thousand times what asks for them.

use std::sync::Arc;

use lockstep_ports::Reserve;
use lockstep_types::sampling::{EXPECTED_TOKENS, LogprobParams, MOST_LOGPROB_BYTES};

use super::{GenerateSpec, MaxTokens};
use crate::{
    app::App,
    error::{ApiError, ApiResult},
};

/// Takes room for the log-probabilities of `n` choices for each prompt: for each
/// choice its part, those of the first prompt first.
///
/// # Errors
/// 400 for more than one request may have, 429 where there is no room.
pub(super) fn reserve(
    app: &App,
    spec: &GenerateSpec,
    (logprobs, n): (LogprobParams, usize),
    prompts: &[Arc<[u32]>],
    lengths: &[u32],
) -> ApiResult<Vec<Reserve>> {
    let choice = |(prompt, tokens): (&Arc<[u32]>, &u32)| {
        let tokens = match spec.max_tokens {
            // What comes beyond is charged as it comes.
            MaxTokens::Rest => EXPECTED_TOKENS.min(*tokens),
            MaxTokens::Exact(_) | MaxTokens::Default(_) => *tokens,
        };
        std::iter::repeat_n(logprobs.bytes(prompt.len(), tokens), n)
    };
    let choices: Vec<usize> = prompts.iter().zip(lengths).flat_map(choice).collect();
    let sum = choices
        .iter()
        .fold(0usize, |sum, bytes| sum.saturating_add(*bytes));
    if sum > MOST_LOGPROB_BYTES {
        let field = spec.logprobs.top_field.as_ref();
        let message = format!(
            "The answer could have {} MiB of log-probabilities; the limit is {} MiB. Ask for fewer \
             choices, tokens ('{}') or alternatives ('{field}').",
            sum >> 20,
            MOST_LOGPROB_BYTES >> 20,
            spec.fields.max_tokens
        );
        return Err(ApiError::invalid(field, message));
    }
    Ok(Reserve::new(&app.ports.budget, &choices)?)
}

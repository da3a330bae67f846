//! Checks of what all choices of a request take together.

use std::sync::Arc;

use lockstep_types::{RequestLimits, ScheduleConfig};

use super::{GenerateSpec, check::integer};
use crate::error::{ApiError, ApiResult};

/// Returns `n` after checking that all choices of the request stay within the limit.
pub(super) fn choices(spec: &GenerateSpec, limits: &RequestLimits) -> ApiResult<usize> {
    let n = integer(&spec.fields.name("n"), spec.n, 1, limits.choices as i64)?;
    let n = usize::try_from(n).unwrap_or(1);
    let all = n.saturating_mul(spec.inputs.len());
    if all > limits.all_choices() {
        return Err(ApiError::invalid(
            spec.fields.name("n"),
            format!(
                "This request asks for {all} choices ({} prompts times n = {n}); the limit is {}.",
                spec.inputs.len(),
                limits.all_choices()
            ),
        ));
    }
    Ok(n)
}

/// Checks that all prompts of a request fit the batch and the queue together. Otherwise
/// some of its choices would be refused however often the client tried again, and until
/// then each choice would hold a copy of its prompt.
pub(super) fn tokens(
    spec: &GenerateSpec,
    prompts: &[Arc<[u32]>],
    n: usize,
    schedule: &ScheduleConfig,
) -> ApiResult<()> {
    let lengths = prompts.iter().map(|prompt| prompt.len());
    let all = lengths.clone().sum::<usize>().saturating_mul(n);
    let longest = lengths.max().unwrap_or(0);
    let running = longest.saturating_mul(schedule.max_running_requests);
    let queued = all.saturating_sub(running);
    // One request may always wait, however long it is.
    if queued <= schedule.max_queued_tokens.max(longest) {
        return Ok(());
    }
    let most = schedule.max_queued_tokens;
    Err(ApiError::invalid(
        spec.fields.input,
        format!(
            "This request has {all} prompt tokens ({} prompts times n = {n}): more than can run \
             and wait at once ({} requests run, {most} tokens wait). Send fewer prompts or \
             choices, or start the server with a larger `--max-queued-tokens`.",
            prompts.len(),
            schedule.max_running_requests,
        ),
    ))
}

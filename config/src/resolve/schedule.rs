use super::{ConfigError, PolicyArg, ScheduleConfig, SchedulePolicy, ServeArgs};
use crate::args::ScheduleArgs;

/// Default numbers of new prompt tokens of a step, and of one chunk if prompts are cut.
const PREFILL_TOKENS: usize = 1024;
const CHUNK: usize = 512;

/// Largest number of requests in a batch.
pub(super) fn max_running_requests(args: &ScheduleArgs) -> usize {
    args.max_running_requests.unwrap_or(64)
}

/// The schedule that the options give for texts of at most `context_length` tokens. The options
/// may still be refused, see [`checked`].
pub(super) fn resolve(args: &ServeArgs, context_length: usize) -> ScheduleConfig {
    let given = &args.schedule;
    let (max_prefill_tokens, chunked_prefill_size) = prefill(args, context_length);
    ScheduleConfig {
        max_running_requests: max_running_requests(given),
        max_queued_requests: given.max_queued_requests.unwrap_or(1024),
        max_queued_tokens: given
            .max_queued_tokens
            .unwrap_or(1 << 20)
            .max(context_length),
        max_prefill_tokens,
        chunked_prefill_size,
        policy: match given.schedule_policy.unwrap_or(PolicyArg::Fcfs) {
            PolicyArg::Fcfs => SchedulePolicy::Fcfs,
            PolicyArg::Lpm => SchedulePolicy::Lpm,
        },
        priorities: given.enable_priority_scheduling,
        overlap: !given.disable_overlap_schedule,
    }
}

/// Does the same as [`resolve`], after a check that options and context length fit together.
pub(super) fn checked(
    args: &ServeArgs,
    context_length: usize,
) -> Result<ScheduleConfig, ConfigError> {
    check(args, context_length)?;
    Ok(resolve(args, context_length))
}

/// Checks that options and context length fit together.
fn check(args: &ServeArgs, context_length: usize) -> Result<(), ConfigError> {
    let given = &args.schedule;
    let running = given.max_running_requests.unwrap_or(0);
    if running > 1 << 16 {
        return Err(ConfigError::value(
            "--max-running-requests",
            running,
            "a batch has at most 65536 requests",
            "Leave the rest to the queue, --max-queued-requests",
        ));
    }
    let dp_size = args.parallel.dp_size.unwrap_or(1);
    if given.max_running_requests.is_some() && running < dp_size {
        return Err(ConfigError::conflict(
            format!("--max-running-requests {running}"),
            format!("--dp-size {dp_size}"),
            "it is divided among DP ranks, and each runs a request at least",
            format!("Give --max-running-requests {dp_size} or more"),
        ));
    }
    check_prefill(args, context_length)?;
    if given.schedule_policy == Some(PolicyArg::Lpm) && args.memory.disable_radix_cache {
        return Err(ConfigError::conflict(
            "--schedule-policy lpm",
            "--disable-radix-cache",
            "without the cache there are no prefixes to match",
            "Leave one of them out",
        ));
    }
    match given.max_queued_tokens {
        Some(tokens) if tokens < context_length => Err(ConfigError::conflict(
            format!("--max-queued-tokens {tokens}"),
            format!("a context length of {context_length}"),
            "the longest prompt could never wait",
            format!(
                "Give at least --max-queued-tokens {context_length}, or a smaller --context-length"
            ),
        )),
        _ => Ok(()),
    }
}

/// Prompt tokens per step and per chunk; `None` = whole prompts, so that a step must take the
/// longest one.
fn prefill(args: &ServeArgs, context: usize) -> (usize, Option<usize>) {
    let most = args.schedule.max_prefill_tokens;
    let chunk = match args.schedule.chunked_prefill_size {
        Some(-1) => return (most.unwrap_or(context), None),
        // A size that does not fit into a `usize` is refused.
        Some(size) => usize::try_from(size).unwrap_or(CHUNK),
        None => CHUNK.min(most.unwrap_or(CHUNK)),
    };
    (most.unwrap_or(PREFILL_TOKENS.max(chunk)), Some(chunk))
}

fn check_prefill(args: &ServeArgs, context: usize) -> Result<(), ConfigError> {
    let most = args.schedule.max_prefill_tokens;
    match (args.schedule.chunked_prefill_size, most) {
        (Some(-1), Some(tokens)) if tokens < context => Err(ConfigError::conflict(
            "--chunked-prefill-size -1".to_owned(),
            format!("--max-prefill-tokens {tokens}"),
            format!("a whole prompt can have {context} tokens and would never run"),
            "Leave chunking on, or give --max-prefill-tokens of the context length",
        )),
        (Some(-1) | None, _) => Ok(()),
        (Some(size @ 1..=0x7fff_ffff), Some(tokens)) if size as usize > tokens => {
            Err(ConfigError::conflict(
                format!("--max-prefill-tokens {tokens}"),
                format!("--chunked-prefill-size {size}"),
                "a chunk would exceed a step",
                "Give a chunk no larger than the step",
            ))
        }
        (Some(1..=0x7fff_ffff), _) => Ok(()),
        (Some(size), _) => Err(ConfigError::value(
            "--chunked-prefill-size",
            size,
            "must be at least 1, or -1 for whole prompts",
            format!("Usual is {CHUNK}"),
        )),
    }
}

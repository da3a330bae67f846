use super::{ConfigError, PolicyArg, ScheduleConfig, SchedulePolicy, ServeArgs};

/// New prompt tokens of a step, and of one chunk, where prompts are cut.
const PREFILL_TOKENS: usize = 1024;
const CHUNK: usize = 512;

pub(super) fn resolve(
    args: &ServeArgs,
    max_running_requests: usize,
    context_length: usize,
) -> Result<ScheduleConfig, ConfigError> {
    let given = &args.schedule;
    if max_running_requests > 1 << 16 {
        return Err(ConfigError::value(
            "--max-running-requests",
            max_running_requests,
            "a batch has at most 65536 requests",
            "Leave the rest to the queue, --max-queued-requests",
        ));
    }
    let (max_prefill_tokens, chunked_prefill_size) = prefill(args, context_length)?;
    let policy = match given.schedule_policy.unwrap_or(PolicyArg::Fcfs) {
        PolicyArg::Fcfs => SchedulePolicy::Fcfs,
        PolicyArg::Lpm if args.memory.disable_radix_cache => {
            return Err(ConfigError::conflict(
                "--schedule-policy lpm",
                "--disable-radix-cache",
                "without the cache there are no prefixes to match",
                "Leave one of them out",
            ));
        }
        PolicyArg::Lpm => SchedulePolicy::Lpm,
    };
    let max_queued_tokens = given.max_queued_tokens.unwrap_or(1 << 20);
    if given.max_queued_tokens.is_some() && max_queued_tokens < context_length {
        return Err(ConfigError::conflict(
            format!("--max-queued-tokens {max_queued_tokens}"),
            format!("a context length of {context_length}"),
            "the longest prompt could never wait",
            format!(
                "Give at least --max-queued-tokens {context_length}, or a smaller --context-length"
            ),
        ));
    }
    Ok(ScheduleConfig {
        max_running_requests,
        max_queued_requests: given.max_queued_requests.unwrap_or(1024),
        max_queued_tokens: max_queued_tokens.max(context_length),
        max_prefill_tokens,
        chunked_prefill_size,
        policy,
        priorities: given.enable_priority_scheduling,
        overlap: !given.disable_overlap_schedule,
    })
}

/// Prompt tokens of one step, as far as they do not depend on the context;
/// `None` = whole prompts.
pub(super) fn chunk(args: &ServeArgs) -> Option<usize> {
    let most = args.schedule.max_prefill_tokens.unwrap_or(usize::MAX);
    match args.schedule.chunked_prefill_size {
        Some(size) => usize::try_from(size).ok(),
        None => Some(CHUNK.min(most)),
    }
}

/// Tokens per step and per chunk.
fn prefill(args: &ServeArgs, context: usize) -> Result<(usize, Option<usize>), ConfigError> {
    let chunk = match args.schedule.chunked_prefill_size {
        None => None,
        Some(-1) => return whole(args, context),
        Some(size @ 1..=0x7fff_ffff) => Some(size as usize),
        Some(size) => {
            return Err(ConfigError::value(
                "--chunked-prefill-size",
                size,
                "must be at least 1, or -1 for whole prompts",
                format!("Usual is {CHUNK}"),
            ));
        }
    };
    match (args.schedule.max_prefill_tokens, chunk) {
        (Some(tokens), Some(chunk)) if chunk > tokens => Err(ConfigError::conflict(
            format!("--max-prefill-tokens {tokens}"),
            format!("--chunked-prefill-size {chunk}"),
            "a chunk would exceed a step",
            "Give a chunk no larger than the step",
        )),
        (Some(tokens), chunk) => Ok((tokens, Some(chunk.unwrap_or(CHUNK.min(tokens))))),
        (None, chunk) => {
            let chunk = chunk.unwrap_or(CHUNK);
            Ok((PREFILL_TOKENS.max(chunk), Some(chunk)))
        }
    }
}

/// Whole prompts: a step must take the longest.
fn whole(args: &ServeArgs, context: usize) -> Result<(usize, Option<usize>), ConfigError> {
    match args.schedule.max_prefill_tokens {
        Some(tokens) if tokens < context => Err(ConfigError::conflict(
            "--chunked-prefill-size -1".to_owned(),
            format!("--max-prefill-tokens {tokens}"),
            format!("a whole prompt can have {context} tokens and would never run"),
            "Leave chunking on, or give --max-prefill-tokens of the context length",
        )),
        Some(tokens) => Ok((tokens, None)),
        None => Ok((context, None)),
    }
}

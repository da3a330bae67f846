//! Checks that refuse requests which can never run here, however long they wait.

use lockstep_types::request::{CACHE_SALT_BYTES, ErrorKind, Request, RequestError};

use crate::PlannerConfig;

/// Checks a request without regard to other requests or memory.
pub(super) fn check_request(config: &PlannerConfig, request: &Request) -> Result<(), RequestError> {
    let len = request.input_ids.len();
    if len == 0 {
        return Err(invalid("input_ids", "the prompt is empty".into()));
    }
    if request.priority != 0 && !config.priority_scheduling {
        return Err(invalid(
            "priority",
            "priorities need a server started with --enable-priority-scheduling".into(),
        ));
    }
    if let Some(dp_rank) = request.data_parallel_rank
        && dp_rank >= config.dp_size
    {
        return Err(invalid(
            "data_parallel_rank",
            format!(
                "there is no DP rank {dp_rank}: they are numbered from 0 to {} (--dp-size)",
                config.dp_size - 1
            ),
        ));
    }
    if request
        .cache_salt
        .as_ref()
        .is_some_and(|salt| salt.len() > CACHE_SALT_BYTES)
    {
        return Err(invalid(
            "cache_salt",
            format!("it has more than {CACHE_SALT_BYTES} bytes"),
        ));
    }
    if let Some(start) = request.generation.logprobs.prompt_start
        && start as usize > len
    {
        return Err(invalid(
            "logprob_start_len",
            format!("position {start} is past the prompt of {len} tokens"),
        ));
    }
    let scores = request.max_new_tokens == 0;
    if scores && request.generation.logprobs.prompt_start.is_none() {
        return Err(invalid(
            "max_new_tokens",
            "max_new_tokens 0 only scores the prompt, which needs prompt log-probabilities".into(),
        ));
    }
    let longest = config.context_length as usize - usize::from(!scores);
    if len > longest {
        return Err(invalid(
            "input_ids",
            format!(
                "the prompt has {len} tokens; with a context length of {} at most {longest} \
                 are possible (--context-length)",
                config.context_length
            ),
        ));
    }
    Ok(())
}

/// Checks that a text fits the KV memory. A request that fits alone can always run: all other
/// requests can be retracted.
pub(super) fn check_capacity(
    config: &PlannerConfig,
    prompt_len: u32,
    max_new: u32,
    max_depth: u32,
) -> Result<(), RequestError> {
    let page = u64::from(config.page_size);
    let text = u64::from(prompt_len) + u64::from(max_new);
    let need = config
        .reserve
        .tokens_for_text(text, max_depth, config.overlap)
        .max(u64::from(prompt_len));
    let capacity = config.capacity_tokens();
    if need.next_multiple_of(page) <= capacity {
        return Ok(());
    }
    Err(invalid(
        "max_new_tokens",
        format!(
            "the prompt ({prompt_len} tokens) and max_new_tokens ({max_new}) need {need} KV \
             tokens with what a step may write; the server has {capacity} \
             (ask for fewer tokens, or raise --max-total-tokens)"
        ),
    ))
}

pub(super) fn invalid(param: &str, message: String) -> RequestError {
    RequestError {
        param: Some(param.into()),
        ..RequestError::new(ErrorKind::Invalid, message)
    }
}

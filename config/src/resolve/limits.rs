use lockstep_types::{LimitsConfig, RequestLimits};

use super::{ConfigError, ServeArgs, connections, schedule};
use crate::args::LimitArgs;

/// The JSON parser's own limit.
const DEEPEST_JSON: usize = 127;
/// HTTP servers do not work with less.
const LEAST_HEADERS: usize = 8192;
/// Bytes of requests at once.
const REQUEST_MEMORY: usize = 512 << 20;

pub(super) fn resolve(args: &ServeArgs) -> Result<LimitsConfig, ConfigError> {
    let max_running_requests = schedule::max_running_requests(&args.schedule);
    let connections = connections::resolve(&args.connections, max_running_requests)?;
    let args = &args.limits;
    let json_depth = args.max_json_depth.unwrap_or(64);
    if json_depth > DEEPEST_JSON {
        let why = format!("the JSON parser stops at {DEEPEST_JSON}");
        return Err(ConfigError::value(
            "--max-json-depth",
            json_depth,
            why,
            "Give that or less",
        ));
    }
    let header_bytes = args.max_header_bytes.unwrap_or(32 * 1024);
    if header_bytes < LEAST_HEADERS {
        let why = format!("usual clients need {LEAST_HEADERS}");
        let remedy = "Give that or more";
        return Err(ConfigError::value(
            "--max-header-bytes",
            header_bytes,
            why,
            remedy,
        ));
    }
    let body_bytes = args.max_body_bytes.unwrap_or(16 << 20);
    Ok(LimitsConfig {
        body_bytes,
        memory_bytes: memory_bytes(args, body_bytes)?,
        header_bytes,
        json_depth,
        connections,
        request: RequestLimits {
            messages: args.max_messages.unwrap_or(4096),
            prompts: args.max_prompts.unwrap_or(1024),
            choices: args.max_choices.unwrap_or(128),
            top_logprobs: args.max_top_logprobs.unwrap_or(20),
            stops: args.max_stop_strings.unwrap_or(4),
            stop_bytes: args.max_stop_bytes.unwrap_or(1024),
            stop_token_ids: args.max_stop_token_ids.unwrap_or(64),
            logit_bias: args.max_logit_bias.unwrap_or(1024),
        },
    })
}

/// A body of the largest size has to fit into three quarters.
fn memory_bytes(args: &LimitArgs, body_bytes: usize) -> Result<usize, ConfigError> {
    let default = REQUEST_MEMORY.max(body_bytes.saturating_mul(4));
    let bytes = args.max_request_memory.unwrap_or(default);
    if bytes - bytes / 4 >= body_bytes {
        return Ok(bytes);
    }
    Err(ConfigError::conflict(
        format!("--max-request-memory {bytes}"),
        format!("--max-body-bytes {body_bytes}"),
        "one body has to fit into three quarters of it",
        "Give more memory, or a smaller --max-body-bytes",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_the_largest_size_fits() {
        let of = |memory, body| {
            let args = LimitArgs {
                max_request_memory: memory,
                ..LimitArgs::default()
            };
            memory_bytes(&args, body)
        };
        assert_eq!(of(None, 16 << 20).expect("good"), 512 << 20);
        assert_eq!(of(None, 1 << 30).expect("good"), 4 << 30);
        assert_eq!(of(Some(4), 3).expect("good"), 4);
        let error = of(Some(4), 4).expect_err("never served").to_string();
        for named in ["--max-request-memory 4", "--max-body-bytes 4"] {
            assert!(error.contains(named), "{error}");
        }
    }
}

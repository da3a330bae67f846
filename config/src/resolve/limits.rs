use lockstep_types::{LimitsConfig, RequestLimits};

use super::{ConfigError, ServeArgs, connections, schedule};
use crate::args::LimitArgs;

/// The JSON parser's own limit of depth.
const DEEPEST_JSON: usize = 127;
/// Least bytes of headers that HTTP servers work with.
const LEAST_HEADERS: u32 = 8192;
/// Default bytes of all requests at once.
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
    let header_bytes = header_bytes(args.max_header_bytes.unwrap_or(32 * 1024))?;
    let body_bytes = args.max_body_bytes.unwrap_or(16 << 20);
    Ok(LimitsConfig {
        body_bytes,
        memory_bytes: memory_bytes(args, body_bytes)?,
        header_bytes,
        json_depth,
        connections,
        request: RequestLimits {
            messages: args.max_messages.unwrap_or(4096),
            tools: args.max_tools.unwrap_or(512),
            tool_bytes: args.max_tool_bytes.unwrap_or(1 << 20),
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

/// Checks the bytes of headers. HTTP/2 announces them in 32 bits.
fn header_bytes(given: usize) -> Result<u32, ConfigError> {
    let refused = |why, remedy| ConfigError::value("--max-header-bytes", given, why, remedy);
    match u32::try_from(given) {
        Ok(bytes @ LEAST_HEADERS..) => Ok(bytes),
        Ok(_) => Err(refused(
            format!("usual clients need {LEAST_HEADERS}"),
            "Give that or more",
        )),
        Err(_) => Err(refused(
            format!("HTTP/2 has no number above {}", u32::MAX),
            "Give that or less",
        )),
    }
}

/// Bytes that all requests may hold. The largest body has to fit into the part for large
/// requests of one address (`ports/src/budget.rs`): three quarters of half of these bytes.
fn memory_bytes(args: &LimitArgs, body_bytes: usize) -> Result<usize, ConfigError> {
    let default = REQUEST_MEMORY.max(body_bytes.saturating_mul(4));
    let bytes = args.max_request_memory.unwrap_or(default);
    let of_address = bytes / 2;
    if of_address - of_address / 4 >= body_bytes {
        return Ok(bytes);
    }
    Err(ConfigError::conflict(
        format!("--max-request-memory {bytes}"),
        format!("--max-body-bytes {body_bytes}"),
        "one body has to fit into three quarters of the half that one address may hold",
        "Give more memory, or a smaller --max-body-bytes",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_a_limit_that_every_protocol_knows() {
        for given in [8192, 32 << 10, u32::MAX as usize] {
            assert_eq!(header_bytes(given).expect("good") as usize, given);
        }
        for (given, limit) in [(8191, "8192"), (5_000_000_000, "4294967295")] {
            let error = header_bytes(given).expect_err("refused").to_string();
            for named in ["--max-header-bytes", &given.to_string(), limit] {
                assert!(error.contains(named), "{error}");
            }
        }
    }

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
        assert_eq!(of(Some(8), 3).expect("good"), 8);
        let error = of(Some(8), 4).expect_err("never served").to_string();
        for named in ["--max-request-memory 8", "--max-body-bytes 4"] {
            assert!(error.contains(named), "{error}");
        }
    }
}

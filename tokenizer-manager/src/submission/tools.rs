//! Checks of tool definitions.

use lockstep_types::RequestLimits;
use serde_json::Value;

use super::count;
use crate::{
    error::{ApiError, ApiResult},
    text::json_bytes,
};

/// Maximum bytes of a tool's name.
const MOST_NAME: usize = 128;

/// Checks the number, the bytes and the form of tool definitions.
///
/// # Errors
/// 400 that names the field.
pub fn check(tools: &[Value], limits: &RequestLimits) -> ApiResult<()> {
    count("tools", tools.len(), limits.tools)?;
    let bytes: usize = tools.iter().map(json_bytes).sum();
    if bytes > limits.tool_bytes {
        return Err(ApiError::invalid(
            "tools",
            format!(
                "Invalid 'tools': they have about {bytes} bytes; the limit is {}. Send fewer or \
                 shorter ones, or start the server with a larger `--max-tool-bytes`.",
                limits.tool_bytes
            ),
        ));
    }
    tools
        .iter()
        .enumerate()
        .try_for_each(|(at, tool)| check_tool(at, tool))
}

fn check_tool(at: usize, tool: &Value) -> ApiResult<()> {
    if !tool.is_object() {
        return Err(invalid(at, "", "a tool must be an object"));
    }
    match &tool["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "function" => {}
        Value::String(kind) => {
            let problem = format!("tools of type '{kind}' are not supported, only functions");
            return Err(ApiError {
                code: Some("unsupported_parameter"),
                ..invalid(at, ".type", &problem)
            });
        }
        _ => return Err(invalid(at, ".type", "it must be a string")),
    }
    let function = &tool["function"];
    if !function.is_object() {
        return Err(invalid(at, ".function", "it must be an object"));
    }
    match &function["name"] {
        Value::String(name) if is_name(name) => {}
        Value::String(_) => {
            let problem =
                format!("expected 1 to {MOST_NAME} letters, digits and characters of \"_-.:/\"");
            return Err(invalid(at, ".function.name", &problem));
        }
        _ => return Err(invalid(at, ".function.name", "it must be a string")),
    }
    if !matches!(function["description"], Value::Null | Value::String(_)) {
        return Err(invalid(at, ".function.description", "it must be a string"));
    }
    if !matches!(function["parameters"], Value::Null | Value::Object(_)) {
        let problem = "it must be an object, a JSON Schema";
        return Err(invalid(at, ".function.parameters", problem));
    }
    match function["strict"] {
        Value::Null | Value::Bool(false) => Ok(()),
        Value::Bool(true) => {
            let problem = "calls are not constrained to a schema by this version; leave it out, \
                           and check the arguments";
            Err(ApiError {
                code: Some("unsupported_parameter"),
                ..invalid(at, ".function.strict", problem)
            })
        }
        _ => Err(invalid(at, ".function.strict", "it must be true or false")),
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(plain)
}

fn invalid(at: usize, place: &str, problem: &str) -> ApiError {
    let param = format!("tools[{at}]{place}");
    ApiError::invalid(&param, format!("Invalid value for '{param}': {problem}."))
}

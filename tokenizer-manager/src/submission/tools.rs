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

/// Names of the fields of a tool, which APIs spell differently. Errors use them.
#[derive(Debug, Clone, Copy)]
pub struct ToolNames {
    /// Place of the function within the tool, such as `.function`; empty if the tool is the
    /// function.
    pub function: &'static str,
    /// Field that holds the schema of the arguments.
    pub schema: &'static str,
}

impl ToolNames {
    /// Names of the chat API.
    pub const CHAT: Self = Self {
        function: ".function",
        schema: "parameters",
    };
}

/// Checks the number, the bytes and the form of tool definitions. They have the chat API's form,
/// whatever `names` the client knows.
///
/// # Errors
/// 400 that names the field.
pub fn check(tools: &[Value], limits: &RequestLimits, names: &ToolNames) -> ApiResult<()> {
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
        .try_for_each(|(at, tool)| check_tool(at, tool, names))
}

fn check_tool(at: usize, tool: &Value, names: &ToolNames) -> ApiResult<()> {
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
        return Err(invalid(at, names.function, "it must be an object"));
    }
    check_function(function, names, |field, problem| {
        invalid(at, &format!("{}.{field}", names.function), problem)
    })
}

fn check_function(
    function: &Value,
    names: &ToolNames,
    invalid: impl Fn(&str, &str) -> ApiError,
) -> ApiResult<()> {
    match &function["name"] {
        Value::String(name) if is_name(name) => {}
        Value::String(_) => {
            let problem =
                format!("expected 1 to {MOST_NAME} letters, digits and characters of \"_-.:/\"");
            return Err(invalid("name", &problem));
        }
        _ => return Err(invalid("name", "it must be a string")),
    }
    if !matches!(function["description"], Value::Null | Value::String(_)) {
        return Err(invalid("description", "it must be a string"));
    }
    if !matches!(function["parameters"], Value::Null | Value::Object(_)) {
        let problem = "it must be an object, a JSON Schema";
        return Err(invalid(names.schema, problem));
    }
    match function["strict"] {
        Value::Null | Value::Bool(_) => Ok(()),
        _ => Err(invalid("strict", "it must be true or false")),
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

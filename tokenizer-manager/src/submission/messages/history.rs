//! Checks of the fields about earlier turns, besides the content: thoughts, tool calls,
//! and the call that a result belongs to.

use serde_json::{Map, Value};

use super::invalid;
use crate::error::{ApiError, ApiResult};

/// Fields that must be texts if present.
const TEXTS: &[&str] = &[
    "name",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
];

/// Refuses fields of a wrong type, by the field's name. Templates use these fields
/// without checks.
pub(super) fn check(at: usize, message: &Map<String, Value>) -> ApiResult<()> {
    for field in TEXTS {
        let value = message.get(*field);
        if !matches!(value, None | Some(Value::Null | Value::String(_))) {
            return Err(invalid(at, &format!(".{field}"), "it must be a string"));
        }
    }
    if !matches!(message.get("function_call"), None | Some(Value::Null)) {
        return Err(ApiError {
            code: Some("unsupported_parameter"),
            ..invalid(
                at,
                ".function_call",
                "no chat template reads it, send 'tool_calls'",
            )
        });
    }
    match message.get("tool_calls") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(calls)) => calls
            .iter()
            .enumerate()
            .try_for_each(|(index, call)| check_call(at, index, call)),
        Some(_) => Err(invalid(at, ".tool_calls", "it must be a list")),
    }
}

fn check_call(at: usize, index: usize, call: &Value) -> ApiResult<()> {
    let place = format!(".tool_calls[{index}]");
    if let Some(Value::String(kind)) = call.get("type")
        && kind != "function"
    {
        return Err(ApiError {
            code: Some("unsupported_parameter"),
            ..invalid(
                at,
                &place,
                &format!("calls of type '{kind}' are not supported, only those of functions"),
            )
        });
    }
    let Some(Value::Object(function)) = call.get("function") else {
        let problem = "a call must be an object with a 'function'";
        return Err(invalid(at, &place, problem));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(invalid(
            at,
            &format!("{place}.function.name"),
            "it must be a string",
        ));
    }
    match function.get("arguments") {
        None | Some(Value::Null | Value::String(_) | Value::Object(_)) => Ok(()),
        Some(_) => Err(invalid(
            at,
            &format!("{place}.function.arguments"),
            "it must be JSON in a string, or an object",
        )),
    }
}

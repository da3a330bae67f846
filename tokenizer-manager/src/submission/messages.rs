//! Checks of messages that need no template.

mod history;

use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};

/// Roles of OpenAI's API.
const ROLES: &[&str] = &[
    "developer",
    "system",
    "user",
    "assistant",
    "tool",
    "function",
];

/// Checks the types of all messages: each is an object with a known role and text as
/// content, and its fields about earlier turns have the right types.
///
/// # Errors
/// 400 that names the field.
pub fn check(messages: &[Value]) -> ApiResult<()> {
    if messages.is_empty() {
        return Err(ApiError {
            code: Some("empty_array"),
            ..ApiError::invalid(
                "messages",
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got \
                 an empty array instead.",
            )
        });
    }
    for (at, message) in messages.iter().enumerate() {
        let Value::Object(fields) = message else {
            return Err(invalid(at, "", "a message must be an object"));
        };
        match fields.get("role") {
            None => {
                let param = format!("messages[{at}].role");
                return Err(ApiError {
                    code: Some("missing_required_parameter"),
                    ..ApiError::invalid(&param, format!("Missing required parameter: '{param}'."))
                });
            }
            Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
            Some(Value::String(role)) => {
                let problem = format!("'{role}' is not one of {}", ROLES.join(", "));
                return Err(invalid(at, ".role", &problem));
            }
            Some(_) => return Err(invalid(at, ".role", "it must be a string")),
        }
        check_content(at, fields)?;
        history::check(at, fields)?;
    }
    Ok(())
}

fn check_content(at: usize, message: &Map<String, Value>) -> ApiResult<()> {
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        // An assistant's message may hold nothing but tool calls.
        None | Some(Value::Null) if message.get("role").is_some_and(|role| role == "assistant") => {
            Ok(())
        }
        None | Some(Value::Null) => Err(invalid(
            at,
            ".content",
            "expected a string or a list of parts, but got null",
        )),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .try_for_each(|(index, part)| check_part(at, index, part)),
        Some(_) => Err(invalid(
            at,
            ".content",
            "it must be a string or a list of parts",
        )),
    }
}

fn check_part(at: usize, index: usize, part: &Value) -> ApiResult<()> {
    let place = format!(".content[{index}]");
    match part.get("type").and_then(Value::as_str) {
        Some("text" | "refusal" | "input_text" | "output_text" | "thinking" | "reasoning") => {
            Ok(())
        }
        Some(kind) => Err(ApiError {
            code: Some("unsupported_parameter"),
            ..invalid(
                at,
                &place,
                &format!("parts of type '{kind}' are not supported, the model takes text only"),
            )
        }),
        None => Err(invalid(
            at,
            &place,
            "a part must be an object with a 'type'",
        )),
    }
}

fn invalid(at: usize, place: &str, problem: &str) -> ApiError {
    let param = format!("messages[{at}]{place}");
    ApiError::invalid(&param, format!("Invalid value for '{param}': {problem}."))
}

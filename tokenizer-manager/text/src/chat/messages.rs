//! From messages as OpenAI's API carries them to messages as chat templates expect them.

use serde_json::{Map, Value};

use super::TemplateError;
use super::content::{ContentFormat, part_text, text_of, text_part};
use super::message_shape::{MessageShape, NoContent};
use super::request::ChatRequest;
use super::thinking::is_thought;

/// Messages in the shape the template wants:
/// * fields that are `null` are left out, as in transformers, and thoughts get every name that
///   templates have for them;
/// * content as strings or parts; where there is none, what the template takes for none;
/// * a tool call's `arguments`, JSON in a string on the wire, become the object they spell, or stay
///   a string. Arguments that are not a JSON object stay a string anyway: they are the model's own
///   words from an earlier turn, not the client's fault;
/// * roles and places of instructions as [`Roles::settle`](super::roles::Roles::settle) says.
///
/// Everything else, unknown fields included, passes through.
pub(super) fn normalise(
    request: &ChatRequest<'_>,
    shape: MessageShape,
) -> Result<Vec<Value>, TemplateError> {
    let shaped = request.messages.iter().enumerate();
    let shaped = shaped.map(|(index, message)| shaped_message(message, shape, index));
    let shaped = shaped.collect::<Result<_, _>>()?;
    let roles = match request.tools {
        Some(_) => shape.roles_beside_tools,
        None => shape.roles,
    };
    roles.settle(shaped, shape.content, request.continue_final_message)
}

fn shaped_message(
    message: &Value,
    shape: MessageShape,
    index: usize,
) -> Result<Value, TemplateError> {
    let Value::Object(message) = message else {
        return Err(TemplateError::invalid(format!(
            "messages[{index}] is not an object"
        )));
    };
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(TemplateError::invalid(format!(
            "messages[{index}].role must be a string"
        )));
    }
    let given = message.iter().filter(|(_, value)| !value.is_null());
    let mut message: Map<String, Value> = given
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    shape.thinking.name_all(&mut message, index)?;
    let calls = message.get("tool_calls").is_some_and(Value::is_array);
    let none = match calls {
        true => shape.calls_content,
        false => shape.no_content,
    };
    let content = match (message.get("content"), none) {
        (Some(given), _) => Some(content(given, shape.content, index)?),
        (None, NoContent::Absent) => None,
        (None, NoContent::Empty) => Some(shape.content.wrap("")),
        (None, NoContent::Null) => Some(Value::Null),
    };
    if let Some(content) = content {
        message.insert("content".to_owned(), content);
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        calls
            .iter_mut()
            .for_each(|call| shape_arguments(call, shape.object_arguments));
    }
    Ok(Value::Object(message))
}

fn content(content: &Value, format: ContentFormat, index: usize) -> Result<Value, TemplateError> {
    match content {
        Value::String(text) => Ok(format.wrap(text)),
        Value::Array(parts) => {
            let shaped = parts.iter().enumerate().map(|(part, value)| {
                let bad = |problem: String| {
                    TemplateError::invalid(format!("messages[{index}].content[{part}]: {problem}"))
                };
                if is_thought(value) {
                    return Ok(value.clone());
                }
                part_text(value)
                    .map(|text| text_part(value, text))
                    .map_err(bad)
            });
            let shaped = Value::Array(shaped.collect::<Result<_, _>>()?);
            Ok(match format {
                ContentFormat::String => text_of(&shaped).into(),
                ContentFormat::OpenAi | ContentFormat::PartsOnly => shaped,
            })
        }
        _ => Err(TemplateError::invalid(format!(
            "messages[{index}].content must be a string, a list of parts or null"
        ))),
    }
}

fn shape_arguments(call: &mut Value, object_arguments: bool) {
    let function = call.get_mut("function");
    let Some(arguments) = function.and_then(|function| function.get_mut("arguments")) else {
        return;
    };
    match arguments {
        Value::String(text) if object_arguments => {
            if text.trim().is_empty() {
                *arguments = Value::Object(Map::new());
            } else if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                *arguments = object;
            }
        }
        Value::Object(_) if !object_arguments => *arguments = arguments.to_string().into(),
        _ => {}
    }
}

//! From messages as OpenAI's API carries them to messages as chat templates expect them.

use serde_json::{Map, Value, json};

use super::message_shape::MessageShape;
use super::{ContentFormat, TemplateError};

/// Joins the text parts of a message whose template wants a string, as vLLM and llama.cpp do.
const PART_SEPARATOR: &str = "\n";

/// Messages in the shape the template wants:
/// * content as strings or parts; absent and `null` content becomes the empty string, or `none`
///   beside tool calls where the template tells by that;
/// * a tool call's `arguments`, JSON in a string on the wire, become the object they spell, or stay
///   a string. Arguments that are not a JSON object stay a string anyway: they are the model's own
///   words from an earlier turn, not the client's fault.
///
/// Everything else, unknown fields included, passes through.
pub(super) fn normalise(
    messages: &[Value],
    shape: MessageShape,
) -> Result<Vec<Value>, TemplateError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
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
            let mut message = message.clone();
            let given = message.get("content").filter(|content| !content.is_null());
            let calls = message.get("tool_calls").is_some_and(Value::is_array);
            let content = if calls && given.is_none() && shape.null_content {
                Value::Null
            } else {
                content(given, shape.content, index)?
            };
            message.insert("content".to_owned(), content);
            if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
                calls
                    .iter_mut()
                    .for_each(|call| shape_arguments(call, shape.object_arguments));
            }
            Ok(Value::Object(message))
        })
        .collect()
}

fn content(
    content: Option<&Value>,
    format: ContentFormat,
    index: usize,
) -> Result<Value, TemplateError> {
    match content {
        None => Ok(wrap("", format)),
        Some(Value::String(text)) => Ok(wrap(text, format)),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts
                .iter()
                .enumerate()
                .map(|(part, value)| part_text(value).map_err(|e| bad_part(index, part, &e)))
                .collect::<Result<_, _>>()?;
            Ok(match format {
                ContentFormat::String => Value::String(texts.join(PART_SEPARATOR)),
                ContentFormat::OpenAi | ContentFormat::PartsOnly => parts
                    .iter()
                    .zip(texts)
                    .map(|(part, text)| text_part(part, text))
                    .collect(),
            })
        }
        Some(_) => Err(TemplateError::invalid(format!(
            "messages[{index}].content must be a string, a list of parts or null"
        ))),
    }
}

fn wrap(text: &str, format: ContentFormat) -> Value {
    match format {
        ContentFormat::PartsOnly => json!([{"type": "text", "text": text}]),
        ContentFormat::String | ContentFormat::OpenAi => Value::String(text.to_owned()),
    }
}

/// The part as templates know it: type `text`, other fields of it kept.
fn text_part(part: &Value, text: &str) -> Value {
    let mut fields = match part {
        Value::Object(fields) => fields.clone(),
        _ => Map::new(),
    };
    fields.insert("type".to_owned(), "text".into());
    fields.insert("text".to_owned(), text.into());
    Value::Object(fields)
}

fn part_text(part: &Value) -> Result<&str, String> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Value::as_str);
    let field = match kind {
        None if part.get("text").is_some() => "text",
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            return Err(format!(
                "parts of type {other:?} are not supported: this model takes text only"
            ));
        }
        None => return Err("a part must be an object with a \"type\"".to_owned()),
    };
    part.get(field)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{field:?} must be a string"))
}

fn bad_part(message: usize, part: usize, problem: &str) -> TemplateError {
    TemplateError::invalid(format!("messages[{message}].content[{part}]: {problem}"))
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

/// Fails where a value nests deeper than `limit`. Iterative, so that the check itself is safe.
pub(super) fn check_depth<'a>(
    what: &str,
    values: impl IntoIterator<Item = &'a Value>,
    limit: usize,
) -> Result<(), TemplateError> {
    let mut open: Vec<(&Value, usize)> = values.into_iter().map(|value| (value, 1)).collect();
    while let Some((value, depth)) = open.pop() {
        if depth > limit {
            return Err(TemplateError::invalid(format!(
                "{what}: JSON is nested deeper than {limit} levels"
            )));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

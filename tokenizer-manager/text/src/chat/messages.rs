//! Conversion of messages from OpenAI's form to the form that chat templates expect.

use minijinja::Value;
use serde_json::{Value as Json, json};

use super::TemplateError;
use super::content::{ContentFormat, PART_SEPARATOR, part_text, text_part};
use super::jinja;
use super::message::Message;
use super::message_shape::{MessageShape, NoContent};
use super::request::ChatRequest;
use super::thinking::is_thought;

/// Converts messages to the template's shape:
/// * Fields that are `null` are left out, as in transformers. Thoughts get the template's name
///   for them.
/// * Content becomes a string or parts; absent content becomes the template's replacement.
/// * A tool call's `arguments`, JSON in a string on the wire, become the object that they spell,
///   or stay a string. Arguments that are not a JSON object always stay a string: they are the
///   model's own words from an earlier turn, not the client's fault.
/// * Roles and places of instructions are settled by
///   [`Roles::settle`](super::roles::Roles::settle).
///
/// Everything else, unknown fields included, passes through.
pub(super) fn normalise<'a>(
    request: &ChatRequest<'a>,
    shape: MessageShape,
) -> Result<Vec<Message<'a>>, TemplateError> {
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
    message: &Json,
    shape: MessageShape,
    index: usize,
) -> Result<Message<'_>, TemplateError> {
    let Json::Object(fields) = message else {
        return Err(TemplateError::invalid(format!(
            "messages[{index}] is not an object"
        )));
    };
    if !fields.get("role").is_some_and(Json::is_string) {
        return Err(TemplateError::invalid(format!(
            "messages[{index}].role must be a string"
        )));
    }
    let mut message = Message::default();
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let value = match (name.as_str(), value) {
            ("content", given) => content(given, shape, index)?,
            ("tool_calls", Json::Array(calls)) => calls
                .iter()
                .map(|call| shaped_call(call, shape.object_arguments))
                .collect(),
            (_, value) => jinja::value_of(value),
        };
        message.set(name, value);
    }
    if message.get("content").is_none() {
        let none = match fields.get("tool_calls").is_some_and(Json::is_array) {
            true => shape.calls_content,
            false => shape.no_content,
        };
        match none {
            NoContent::Absent => {}
            NoContent::Empty => message.set("content", shape.content.wrap("")),
            NoContent::Null => message.set("content", Value::from(())),
        }
    }
    shape
        .thinking
        .name(&mut message, fields.get("content"), index)?;
    Ok(message)
}

fn content(content: &Json, shape: MessageShape, index: usize) -> Result<Value, TemplateError> {
    let parts = match content {
        Json::String(text) => return Ok(shape.content.wrap(text)),
        Json::Array(parts) => parts,
        _ => {
            return Err(TemplateError::invalid(format!(
                "messages[{index}].content must be a string, a list of parts or null"
            )));
        }
    };
    let (mut texts, mut shaped) = (Vec::new(), Vec::new());
    for (part, value) in parts.iter().enumerate() {
        let bad = |problem: String| {
            TemplateError::invalid(format!("messages[{index}].content[{part}]: {problem}"))
        };
        if is_thought(value) {
            shaped.extend(shape.thinking.part(value).map_err(bad)?);
            continue;
        }
        let text = part_text(value).map_err(bad)?;
        match shape.content {
            ContentFormat::String => texts.push(text),
            ContentFormat::OpenAi | ContentFormat::PartsOnly => shaped.push(text_part(value, text)),
        }
    }
    Ok(match shape.content {
        ContentFormat::String => texts.join(PART_SEPARATOR).into(),
        ContentFormat::OpenAi | ContentFormat::PartsOnly => shaped.into(),
    })
}

fn shaped_call(call: &Json, object_arguments: bool) -> Value {
    let Json::Object(call) = call else {
        return jinja::value_of(call);
    };
    jinja::fields_of(call, |name, value| match (name, value) {
        ("function", Json::Object(function)) => {
            jinja::fields_of(function, |name, value| match name {
                "arguments" => arguments(value, object_arguments),
                _ => jinja::value_of(value),
            })
        }
        _ => jinja::value_of(value),
    })
}

fn arguments(given: &Json, as_object: bool) -> Value {
    match given {
        Json::String(text) if as_object => match serde_json::from_str(text) {
            Ok(object @ Json::Object(_)) => jinja::value_of(&object),
            _ if text.trim().is_empty() => jinja::value_of(&json!({})),
            _ => Value::from(text.as_str()),
        },
        Json::Object(_) if !as_object => Value::from(given.to_string()),
        _ => jinja::value_of(given),
    }
}

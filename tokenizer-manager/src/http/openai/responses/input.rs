//! Conversion of instructions and input items to the messages of chat templates.

use serde_json::{Map, Value, json};

use crate::{
    error::{ApiError, ApiResult},
    http::conversation::content,
};

/// Returns the messages.
///
/// # Errors
/// 400 that names the item.
pub(super) fn messages(instructions: Option<String>, input: Value) -> ApiResult<Vec<Value>> {
    let mut turns = Turns::default();
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        turns.message("system", instructions.into());
    }
    match input {
        Value::String(text) => turns.message("user", text.into()),
        Value::Array(items) if items.is_empty() => {
            return Err(ApiError {
                code: Some("empty_array"),
                ..invalid("input", "it must not be empty")
            });
        }
        Value::Array(items) => {
            for (at, item) in items.into_iter().enumerate() {
                turns.item(item, &format!("input[{at}]"))?;
            }
        }
        _ => return Err(invalid("input", "it must be a string or a list of items")),
    }
    turns.close();
    Ok(turns.messages)
}

/// Messages so far. An assistant's turn has several items, which make one message.
#[derive(Debug, Default)]
struct Turns {
    messages: Vec<Value>,
    thoughts: Vec<String>,
    answer: Option<Value>,
    calls: Vec<Value>,
}

impl Turns {
    fn item(&mut self, item: Value, place: &str) -> ApiResult<()> {
        let Value::Object(mut item) = item else {
            return Err(invalid(place, "an item must be an object"));
        };
        match item.remove("type") {
            None | Some(Value::Null) => self.of_role(item, place),
            Some(Value::String(kind)) => match kind.as_str() {
                "message" => self.of_role(item, place),
                "reasoning" => self.reasoning(item, place),
                "function_call" => self.call(item, place),
                "function_call_output" => self.result(item, place),
                _ => Err(unsupported(place, "items", &kind)),
            },
            Some(_) => {
                let place = format!("{place}.type");
                Err(invalid(&place, "it must be a string"))
            }
        }
    }

    fn of_role(&mut self, mut item: Map<String, Value>, place: &str) -> ApiResult<()> {
        let content = content(texts(item.remove("content"), &format!("{place}.content"))?);
        match item.get("role").and_then(Value::as_str) {
            Some("assistant") => {
                // Text may come behind calls of the same turn.
                if self.answer.is_some() {
                    self.close();
                }
                self.answer = Some(content);
            }
            Some(role @ ("user" | "system" | "developer")) => self.message(role, content),
            _ => {
                let place = format!("{place}.role");
                let roles = "expected one of user, assistant, system, developer";
                return Err(invalid(&place, roles));
            }
        }
        Ok(())
    }

    /// Adds reasoning of an earlier turn, or else what is left of it: its summary.
    fn reasoning(&mut self, mut item: Map<String, Value>, place: &str) -> ApiResult<()> {
        if self.answer.is_some() || !self.calls.is_empty() {
            self.close();
        }
        for field in ["content", "summary"] {
            let given = item.remove(field).filter(|given| !given.is_null());
            if given.is_some() {
                let found = texts(given, &format!("{place}.{field}"))?;
                if !found.is_empty() {
                    self.thoughts.extend(found);
                    break;
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, mut item: Map<String, Value>, place: &str) -> ApiResult<()> {
        let [id, name, arguments] =
            ["call_id", "name", "arguments"].map(|field| text(&mut item, field, place));
        self.calls.push(json!({
            "id": id?, "type": "function", "function": {"name": name?, "arguments": arguments?}
        }));
        Ok(())
    }

    fn result(&mut self, mut item: Map<String, Value>, place: &str) -> ApiResult<()> {
        let id = text(&mut item, "call_id", place)?;
        let output = texts(item.remove("output"), &format!("{place}.output"))?;
        self.close();
        let message = json!({"role": "tool", "tool_call_id": id, "content": content(output)});
        self.messages.push(message);
        Ok(())
    }

    fn message(&mut self, role: &str, content: Value) {
        self.close();
        let message = Value::from_iter([("role", role.into()), ("content", content)]);
        self.messages.push(message);
    }

    /// Ends the assistant's turn, if one is open. Reasoning without an answer is left out: no
    /// template shows it.
    fn close(&mut self) {
        let thoughts = std::mem::take(&mut self.thoughts);
        let calls = std::mem::take(&mut self.calls);
        let answer = self.answer.take();
        if answer.is_none() && calls.is_empty() {
            return;
        }
        let mut message = json!({"role": "assistant", "content": answer});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.join("\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
    }
}

/// Returns the texts of content, which is a text or parts.
fn texts(content: Option<Value>, place: &str) -> ApiResult<Vec<String>> {
    match content {
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate();
            parts
                .map(|(at, part)| part_text(part, &format!("{place}[{at}]")))
                .collect()
        }
        _ => Err(invalid(place, "it must be a string or a list of parts")),
    }
}

fn part_text(part: Value, place: &str) -> ApiResult<String> {
    let Value::Object(mut part) = part else {
        return Err(invalid(place, "a part must be an object"));
    };
    let Some(Value::String(kind)) = part.remove("type") else {
        return Err(invalid(place, "a part must have a 'type'"));
    };
    match kind.as_str() {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
            text(&mut part, "text", place)
        }
        "refusal" => text(&mut part, "refusal", place),
        kind => Err(unsupported(place, "parts", kind)),
    }
}

fn text(fields: &mut Map<String, Value>, field: &str, place: &str) -> ApiResult<String> {
    match fields.remove(field) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid(&format!("{place}.{field}"), "it must be a string")),
    }
}

fn invalid(place: &str, problem: &str) -> ApiError {
    ApiError::invalid(place, format!("Invalid value for '{place}': {problem}."))
}

fn unsupported(place: &str, what: &str, kind: &str) -> ApiError {
    ApiError::unsupported(
        place,
        format!(
            "Invalid value for '{place}': {what} of type '{kind}' are not supported; send texts, \
             calls of functions and their outputs."
        ),
    )
}

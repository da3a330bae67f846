//! Content of messages: a text, or parts that hold texts.

use serde_json::{Map, Value, json};

/// Joins the text parts of a message whose template wants a string, as vLLM and llama.cpp do.
const PART_SEPARATOR: &str = "\n";

/// The shape of `content` that a template handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// Strings only; lists of parts are flattened.
    String,
    /// Strings as well as lists of `{"type": "text", "text": …}`.
    OpenAi,
    /// Lists of parts only; strings are wrapped in one.
    PartsOnly,
}

impl ContentFormat {
    /// A text as content.
    pub(super) fn wrap(self, text: &str) -> Value {
        match self {
            Self::PartsOnly => json!([{"type": "text", "text": text}]),
            Self::String | Self::OpenAi => text.into(),
        }
    }
}

/// The text of content, alone or in parts.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join(PART_SEPARATOR)
        }
        _ => String::new(),
    }
}

/// The part as templates know it: type `text`, other fields of it kept.
pub(super) fn text_part(part: &Value, text: &str) -> Value {
    let mut fields = match part {
        Value::Object(fields) => fields.clone(),
        _ => Map::new(),
    };
    fields.insert("type".to_owned(), "text".into());
    fields.insert("text".to_owned(), text.into());
    Value::Object(fields)
}

/// The text of a part that holds one.
pub(super) fn part_text(part: &Value) -> Result<&str, String> {
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

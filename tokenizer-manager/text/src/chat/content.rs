//! Content of messages: a text, or parts that hold texts.

use minijinja::Value;
use serde_json::Value as Json;

use super::jinja;

/// Separator between the text parts of a message if the template needs a string, as in vLLM and
/// llama.cpp.
pub(super) const PART_SEPARATOR: &str = "\n";

/// The shape of `content` that a template handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// Strings only; lists of parts are flattened.
    String,
    /// Strings as well as lists of `{"type": "text", "text": …}`.
    OpenAi,
    /// Lists of parts only; a string is wrapped in a list.
    PartsOnly,
}

impl ContentFormat {
    /// Returns a text as content.
    pub(super) fn wrap(self, text: &str) -> Value {
        match self {
            Self::PartsOnly => Value::from(vec![text_part(&Json::Null, text)]),
            Self::String | Self::OpenAi => text.into(),
        }
    }
}

/// Returns the text of content, whether it is a string or parts.
pub(super) fn text_of(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let texts =
        parts(content).filter_map(|part| Some(part.get_attr("text").ok()?.as_str()?.to_owned()));
    texts.collect::<Vec<_>>().join(PART_SEPARATOR)
}

/// Returns the parts of content; none if the content is a string.
pub(super) fn parts(content: &Value) -> impl Iterator<Item = Value> {
    let parts = content.as_object().and_then(|parts| parts.try_iter());
    parts.into_iter().flatten()
}

/// Returns a part in the form that templates know: type `text`, with the part's other fields.
pub(super) fn text_part(part: &Json, text: &str) -> Value {
    with_fields(part, [("type", "text"), ("text", text)])
}

/// Returns a part's fields, of which those named in `texts` have the given texts.
pub(super) fn with_fields<const N: usize>(part: &Json, texts: [(&str, &str); N]) -> Value {
    let kept = part.as_object().into_iter().flatten();
    let kept = kept.filter(|(name, _)| !texts.iter().any(|(known, _)| known == name));
    let kept = kept.map(|(name, value)| (name.as_str(), jinja::value_of(value)));
    Value::from_pairs(
        texts
            .map(|(name, text)| (name, Value::from(text)))
            .into_iter()
            .chain(kept),
    )
}

/// Returns the text of a part.
pub(super) fn part_text(part: &Json) -> Result<&str, String> {
    if let Json::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Json::as_str);
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
        .and_then(Json::as_str)
        .ok_or_else(|| format!("{field:?} must be a string"))
}

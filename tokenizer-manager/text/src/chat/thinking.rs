//! What a model thought in earlier turns, under the names that clients and templates have for it.

use serde_json::{Map, Value, json};

use super::TemplateError;
use super::content::{ContentFormat, part_text};
use super::probe::{MARK, Probe, shows};

/// The fields of a message that hold thoughts; transformers takes the first that is there.
const FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Separates the thoughts of several parts.
const SEPARATOR: &str = "\n";

/// Where a template looks for thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// In fields of the message, or nowhere.
    Fields,
    /// In parts of the content too, as Mistral's do.
    Parts,
}

impl Thinking {
    /// Tries the template.
    pub(super) fn detect(probe: &Probe<'_>) -> Self {
        let thought = json!({
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": MARK}, {"type": "text", "text": "Gone"}],
        });
        let go = probe.message("user", "Go");
        let (last, earlier) = (json!([go, thought]), json!([go, thought, go]));
        // Some show only what was thought since the user's last message.
        let shown = [last, earlier].map(|messages| shows(probe.render(&messages).as_deref()));
        if shown.contains(&true) && probe.content != ContentFormat::String {
            Self::Parts
        } else {
            Self::Fields
        }
    }

    /// Gives the thoughts of a message every name that templates know: those in parts move to the
    /// fields where the template looks there alone.
    ///
    /// # Errors
    /// A part of thoughts without a text, or one that is not an assistant's and would be lost.
    pub(super) fn name_all(
        self,
        message: &mut Map<String, Value>,
        index: usize,
    ) -> Result<(), TemplateError> {
        let assistant = message.get("role").is_some_and(|role| role == "assistant");
        if let Some(Value::Array(parts)) = message.get_mut("content") {
            let mut thoughts = Vec::new();
            for (part, value) in parts.iter_mut().enumerate().filter(|(_, p)| is_thought(p)) {
                let place = || format!("messages[{index}].content[{part}]");
                let text = thought(value)
                    .map_err(|problem| TemplateError::invalid(format!("{}: {problem}", place())))?;
                if self == Self::Fields && !assistant {
                    return Err(TemplateError::invalid(format!(
                        "{}: the model's chat template shows thinking of the assistant alone",
                        place()
                    )));
                }
                value["type"] = "thinking".into();
                value["thinking"] = text.as_str().into();
                thoughts.push(text);
            }
            if self == Self::Fields && !thoughts.is_empty() {
                parts.retain(|part| !is_thought(part));
                let thoughts = thoughts.join(SEPARATOR);
                message.entry(FIELDS[0]).or_insert_with(|| thoughts.into());
            }
        }
        let given = FIELDS.iter().find_map(|field| message.get(*field)).cloned();
        if let Some(given) = given {
            for field in FIELDS {
                message.entry(field).or_insert_with(|| given.clone());
            }
        }
        Ok(())
    }
}

/// Whether a part of content holds thoughts.
pub(super) fn is_thought(part: &Value) -> bool {
    part["type"] == "thinking" || part["type"] == "reasoning"
}

/// The text of a part of thoughts: in the field of its type or in `text`, alone or in parts.
fn thought(part: &Value) -> Result<String, String> {
    let fields = ["thinking", "reasoning", "text"];
    let found = fields.iter().find_map(|field| part.get(field));
    match found {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().map(part_text).collect::<Result<_, _>>()?;
            Ok(texts.concat())
        }
        _ => Err("\"thinking\" must be a string".to_owned()),
    }
}

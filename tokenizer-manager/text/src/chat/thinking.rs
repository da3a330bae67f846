//! What a model thought in earlier turns, under the names that clients and templates have for it.

use minijinja::Value;
use serde_json::{Value as Json, json};

use super::TemplateError;
use super::content::{ContentFormat, part_text, with_fields};
use super::message::Message;
use super::probe::{MARK, Probe, shows};

/// The fields of a message that hold thoughts; transformers takes the first that is there.
const FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Separates the thoughts of several parts.
const SEPARATOR: &str = "\n";

/// A thought that no template has, to be looked for in what it renders.
const THOUGHT: &str = "Bq8Thought8qB";

/// Where a template looks for thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Whether it shows parts of the content, as Mistral's do.
    parts: bool,
    /// Which of the fields it shows.
    fields: [bool; FIELDS.len()],
    /// Whether it refuses them beside the content of a message that calls tools, as gpt-oss's does.
    alone_beside_calls: bool,
}

impl Thinking {
    /// Tries the template; `calls` is a conversation whose second message only calls a tool.
    pub(super) fn detect(probe: &Probe<'_>, calls: &Json) -> Self {
        let go = probe.message("user", "Go");
        let part =
            json!([{"type": "thinking", "thinking": MARK}, {"type": "text", "text": "Gone"}]);
        let thought = json!({"role": "assistant", "content": part});
        // Some show only what was thought since the user's last message.
        let turns = |answer: &Json| [json!([go, answer]), json!([go, answer, go])];
        let parts = turns(&thought)
            .iter()
            .any(|messages| shows(probe.render(messages).as_deref()));
        let fields = FIELDS.map(|field| {
            let mut answer = probe.message("assistant", "Gone");
            answer[field] = THOUGHT.into();
            let mut calls = calls.clone();
            calls[1][field] = THOUGHT.into();
            let shown = |messages| {
                probe
                    .render(messages)
                    .is_some_and(|text| text.contains(THOUGHT))
            };
            turns(&answer).iter().chain([&calls]).any(shown)
        });
        let mut thinking = Self {
            parts: parts && probe.content != ContentFormat::String,
            fields,
            alone_beside_calls: false,
        };
        let mut calls = calls.clone();
        calls[1]["content"] = probe.text("Going");
        if let Some(name) = thinking.shown().next()
            && probe.render(&calls).is_some()
        {
            calls[1][name] = THOUGHT.into();
            thinking.alone_beside_calls = probe.render(&calls).is_none();
        }
        thinking
    }

    /// The fields that the template shows.
    fn shown(self) -> impl Iterator<Item = &'static str> {
        let fields = FIELDS.into_iter().zip(self.fields);
        fields.filter_map(|(field, shown)| shown.then_some(field))
    }

    /// A part of thoughts as the template knows it, or none where it shows fields alone.
    pub(super) fn part(self, part: &Json) -> Result<Option<Value>, String> {
        let text = thought(part)?;
        let part = || with_fields(part, [("type", "thinking"), ("thinking", &text)]);
        Ok(self.parts.then(part))
    }

    /// Gives the thoughts of a message the name that the template has for them: those under another
    /// name, and those in parts of the content that was `given`, where the template shows no parts.
    /// Where it shows none at all, they have the names that transformers gives them.
    ///
    /// # Errors
    /// Parts that are not an assistant's and would be lost, or that say otherwise than a field does.
    pub(super) fn name(
        self,
        message: &mut Message<'_>,
        given: Option<&Json>,
        index: usize,
    ) -> Result<(), TemplateError> {
        let is_empty = |value: &Value| value.as_str() == Some("");
        let full = |message: &Message<'_>, field: &str| {
            message.get(field).filter(|value| !is_empty(value)).cloned()
        };
        let mut thoughts = FIELDS
            .iter()
            .find_map(|field| Some((*field, full(message, field)?)));
        if let Some((part, text)) = self.lost_parts(given)? {
            let refuse = |problem: String| {
                let place = format!("messages[{index}].content[{part}]");
                TemplateError::invalid(format!("{place}: {problem}"))
            };
            if message.text("role") != Some("assistant") {
                return Err(refuse(
                    "the model's chat template shows thinking of the assistant alone".to_owned(),
                ));
            }
            match &thoughts {
                _ if text.is_empty() => {}
                None => thoughts = Some(("", text.into())),
                Some((_, known)) if known.as_str() == Some(&text) => {}
                Some((field, _)) => {
                    return Err(refuse(format!(
                        "this thinking is not that in {field:?}, and the model's chat template shows one of them; \
                         send one"
                    )));
                }
            }
        }
        let Some((_, thoughts)) = thoughts else {
            return Ok(());
        };
        if self.alone_beside_calls
            && message.get("tool_calls").is_some_and(Value::is_true)
            && message.get("content").is_some_and(Value::is_true)
        {
            return Ok(());
        }
        let known: Vec<&'static str> = self.shown().collect();
        if known.iter().any(|field| full(message, field).is_some()) {
            return Ok(());
        }
        let names = match known.as_slice() {
            [] => &FIELDS[..2],
            [first, ..] => &[*first][..],
        };
        for name in names
            .iter()
            .filter(|name| full(message, name).is_none())
            .collect::<Vec<_>>()
        {
            message.set(name, thoughts.clone());
        }
        Ok(())
    }

    /// The place of the first part of thoughts and the text of all, where the template shows no parts.
    fn lost_parts(self, content: Option<&Json>) -> Result<Option<(usize, String)>, TemplateError> {
        let parts = content.and_then(Json::as_array).filter(|_| !self.parts);
        let mut parts = parts
            .into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, part)| is_thought(part));
        let Some((first, part)) = parts.next() else {
            return Ok(None);
        };
        let texts = std::iter::once(part)
            .chain(parts.map(|(_, part)| part))
            .map(thought);
        let texts = texts.collect::<Result<Vec<String>, String>>();
        let texts = texts.map_err(TemplateError::invalid)?;
        Ok(Some((first, texts.join(SEPARATOR))))
    }
}

/// Whether a part of content holds thoughts.
pub(super) fn is_thought(part: &Json) -> bool {
    part["type"] == "thinking" || part["type"] == "reasoning"
}

/// The text of a part of thoughts: in the field of its type or in `text`, alone or in parts.
fn thought(part: &Json) -> Result<String, String> {
    let fields = ["thinking", "reasoning", "text"];
    let found = fields.iter().find_map(|field| part.get(field));
    match found {
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().map(part_text).collect::<Result<_, _>>()?;
            Ok(texts.concat())
        }
        _ => Err("\"thinking\" must be a string".to_owned()),
    }
}

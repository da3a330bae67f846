//! A model's thoughts of earlier turns, under the names that clients and templates use.

use minijinja::Value;
use serde_json::{Value as Json, json};

use super::TemplateError;
use super::content::{ContentFormat, part_text, with_fields};
use super::message::Message;
use super::probe::{MARK, Probe, shows};

/// Fields of a message that may hold thoughts; transformers takes the first present one.
const FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Separator between the thoughts of several parts.
const SEPARATOR: &str = "\n";

/// A thought that no template contains, to be looked for in the rendered prompt.
const THOUGHT: &str = "Bq8Thought8qB";

/// Places where a template looks for thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thinking {
    /// True if the template shows parts of the content, like Mistral's templates.
    parts: bool,
    /// True at the index of each field of [`FIELDS`] that the template shows.
    fields: [bool; FIELDS.len()],
    /// True if the template refuses thoughts beside the content of a message that calls tools,
    /// like gpt-oss's template.
    alone_beside_calls: bool,
}

impl Thinking {
    /// Finds out the places by rendering trial conversations. `calls` is a conversation whose
    /// second message only calls a tool.
    pub(super) fn detect(probe: &Probe<'_>, calls: &Json) -> Self {
        let go = probe.message("user", "Go");
        let part =
            json!([{"type": "thinking", "thinking": MARK}, {"type": "text", "text": "Gone"}]);
        let thought = json!({"role": "assistant", "content": part});
        // Some templates show only thoughts that follow the user's last message.
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

    /// Returns the fields that the template shows.
    fn shown(self) -> impl Iterator<Item = &'static str> {
        let fields = FIELDS.into_iter().zip(self.fields);
        fields.filter_map(|(field, shown)| shown.then_some(field))
    }

    /// Returns a part of thoughts in the template's form; `None` if the template shows only
    /// fields.
    pub(super) fn part(self, part: &Json) -> Result<Option<Value>, String> {
        let text = thought(part)?;
        let part = || with_fields(part, [("type", "thinking"), ("thinking", &text)]);
        Ok(self.parts.then(part))
    }

    /// Puts a message's thoughts into the field that the template shows. They may come from a
    /// field with another name or, if the template shows no parts, from parts of the `given`
    /// content. If the template shows no field, the thoughts get the field names that
    /// transformers uses.
    ///
    /// # Errors
    /// Fails for parts that are not an assistant's and would be lost, and for parts that
    /// contradict a field.
    pub(super) fn name(
        self,
        message: &mut Message<'_>,
        given: Option<&Json>,
        index: usize,
    ) -> Result<(), TemplateError> {
        let Some(thoughts) = self.thoughts(message, given, index)? else {
            return Ok(());
        };
        let is_true = |name| message.get(name).is_some_and(Value::is_true);
        if self.alone_beside_calls && is_true("tool_calls") && is_true("content") {
            return Ok(());
        }
        // A template that looks at one field first would stop at an empty text there.
        for name in FIELDS {
            if message.text(name) == Some("") {
                message.set(name, thoughts.clone());
            }
        }
        let missing = |name: &&str| message.get(name).is_none();
        let names: Vec<&str> = match self.shown().next() {
            Some(_) if !self.shown().all(|name| missing(&name)) => Vec::new(),
            Some(name) => vec![name],
            None => FIELDS.into_iter().take(2).filter(missing).collect(),
        };
        for name in names {
            message.set(name, thoughts.clone());
        }
        Ok(())
    }

    /// Returns the thoughts in fields, or else in parts that the template would not show.
    fn thoughts(
        self,
        message: &Message<'_>,
        content: Option<&Json>,
        index: usize,
    ) -> Result<Option<Value>, TemplateError> {
        let mut fields = FIELDS.iter().filter_map(|name| message.get(name));
        let known = fields.find(|value| value.as_str() != Some("")).cloned();
        let parts = content.and_then(Json::as_array).filter(|_| !self.parts);
        let parts = parts.into_iter().flatten().enumerate();
        let parts: Vec<_> = parts.filter(|(_, part)| is_thought(part)).collect();
        let Some((first, _)) = parts.first() else {
            return Ok(known);
        };
        let refuse = |problem: String| {
            TemplateError::invalid(format!("messages[{index}].content[{first}]: {problem}"))
        };
        if message.text("role") != Some("assistant") {
            let problem = "the model's chat template shows thinking of the assistant alone";
            return Err(refuse(problem.to_owned()));
        }
        let texts = parts.iter().map(|(_, part)| thought(part));
        let texts: Vec<String> = texts.collect::<Result<_, _>>().map_err(refuse)?;
        let text = Value::from(texts.join(SEPARATOR));
        match known {
            Some(known) if text.is_true() && known != text => Err(refuse(
                "the message has other thinking in a field, and the model's chat template shows one of them: send one"
                    .to_owned(),
            )),
            Some(known) => Ok(Some(known)),
            None => Ok(Some(text).filter(Value::is_true)),
        }
    }
}

/// Returns true if a part of content holds thoughts.
pub(super) fn is_thought(part: &Json) -> bool {
    part["type"] == "thinking" || part["type"] == "reasoning"
}

/// Returns the text of a part of thoughts. It stands in the field of the part's type or in
/// `text`, as a string or as parts.
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

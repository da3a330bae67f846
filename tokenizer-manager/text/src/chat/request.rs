//! A caller's request to render a chat.

use serde_json::{Map, Value};

use super::TemplateError;

/// One chat to render. The values are the values of the request's JSON. Fields that this crate
/// does not know reach the template unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatRequest<'a> {
    /// The conversation: objects with at least a `role`.
    pub messages: &'a [Value],
    /// Tool definitions; `None` if the request has none.
    pub tools: Option<&'a [Value]>,
    /// Documents for retrieval-augmented templates.
    pub documents: Option<&'a [Value]>,
    /// True if the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// True if the prompt ends inside the last message; excludes `add_generation_prompt`.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: further variables such as `enable_thinking`.
    pub kwargs: Option<&'a Map<String, Value>>,
}

/// Variables and parameters of `apply_chat_template` that keyword arguments may not replace.
const RESERVED: &[&str] = &[
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "cls_token",
    "continue_final_message",
    "conversation",
    "documents",
    "eos_token",
    "mask_token",
    "max_length",
    "messages",
    "namespace",
    "pad_token",
    "padding",
    "raise_exception",
    "range",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "self",
    "sep_token",
    "strftime_now",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
    "unk_token",
];

impl ChatRequest<'_> {
    /// Returns the approximate bytes of text that the template may see.
    pub(super) fn bytes(&self) -> usize {
        let lists = [Some(self.messages), self.tools, self.documents];
        let listed: usize = lists.into_iter().flatten().flatten().map(size).sum();
        listed + self.kwargs.map_or(0, size_of_fields)
    }

    /// Checks everything that does not depend on the template.
    pub(super) fn check(&self, json_depth: usize) -> Result<(), TemplateError> {
        if self.messages.is_empty() {
            return Err(TemplateError::invalid("messages must not be empty"));
        }
        if self.continue_final_message && self.add_generation_prompt {
            return Err(TemplateError::invalid(
                "continue_final_message and add_generation_prompt exclude each other: set add_generation_prompt to \
                 false",
            ));
        }
        for name in self.kwargs.into_iter().flat_map(Map::keys) {
            if RESERVED.contains(&name.as_str()) {
                return Err(TemplateError::invalid(format!(
                    "chat_template_kwargs may not set the reserved name {name:?}"
                )));
            }
        }
        check_depth("messages", self.messages, json_depth)?;
        check_depth("tools", self.tools.unwrap_or_default(), json_depth)?;
        check_depth("documents", self.documents.unwrap_or_default(), json_depth)?;
        check_depth(
            "chat_template_kwargs",
            self.kwargs.into_iter().flat_map(Map::values),
            json_depth,
        )
    }
}

/// Fails if a value nests deeper than `limit`. The check is iterative, so it is safe itself.
fn check_depth<'a>(
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

/// Returns the approximate bytes of a value, whose nesting must be bounded.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => size_of_fields(fields),
        _ => 8,
    }
}

fn size_of_fields(fields: &Map<String, Value>) -> usize {
    let field = |(name, value): (&String, &Value)| name.len() + size(value);
    fields.iter().map(field).sum()
}

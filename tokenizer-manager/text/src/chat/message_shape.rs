//! Finding out in which shape a template wants messages.
//!
//! SGLang and vLLM look for a loop over `message['content']` in the template's syntax tree. Here
//! the template is tried instead, which also sees through macros and renamed variables (as
//! llama.cpp's minja does).

use serde_json::{Value, json};

use super::jinja::{self, Jinja};

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

/// What a template wants messages to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageShape {
    pub content: ContentFormat,
    /// Arguments of tool calls as objects, which most templates print as JSON; otherwise as JSON in
    /// a string, as they are on the wire (the first DeepSeek templates).
    pub object_arguments: bool,
    /// The content of a message that only calls tools as `none`; otherwise as the empty string.
    pub null_content: bool,
}

/// The shape that a template wants, and whether it rendered an ordinary conversation.
pub(super) fn detect(
    template: &Jinja,
    special_tokens: &[(String, String)],
) -> (MessageShape, bool) {
    let render = |messages: &Value| render(template, special_tokens, messages);
    let user = |content: Value| render(&json!([{"role": "user", "content": content}]));
    let string = user(json!(MARK));
    let parts = user(json!([{"type": "text", "text": MARK}]));
    let content = match (shows(string.as_deref()), shows(parts.as_deref())) {
        (true, true) => ContentFormat::OpenAi,
        (false, true) => ContentFormat::PartsOnly,
        _ => ContentFormat::String,
    };
    let shapes = [(true, false), (true, true), (false, false), (false, true)];
    let (object_arguments, null_content) = shapes
        .into_iter()
        .find(|&(object_arguments, null_content)| {
            let text = render(&tool_call(content, object_arguments, null_content));
            // A printed Python dictionary is no JSON.
            text.is_some_and(|t| t.contains(MARK) && t.contains("mark_name") && !t.contains("{'"))
        })
        .unwrap_or(shapes[0]);
    let shape = MessageShape {
        content,
        object_arguments,
        null_content,
    };
    (shape, string.is_some() || parts.is_some())
}

const MARK: &str = "Aq7Content7qA";

/// Whether the mark appears, and not inside a printed list.
fn shows(text: Option<&str>) -> bool {
    let quoted = [format!("'{MARK}'"), format!("\"{MARK}\"")];
    text.is_some_and(|text| text.contains(MARK) && !quoted.iter().any(|q| text.contains(q)))
}

fn tool_call(content: ContentFormat, object_arguments: bool, null_content: bool) -> Value {
    let text = |text: &str| match content {
        ContentFormat::PartsOnly => json!([{"type": "text", "text": text}]),
        _ => json!(text),
    };
    let arguments = json!({"mark_key": MARK});
    let arguments = if object_arguments {
        arguments
    } else {
        arguments.to_string().into()
    };
    json!([
        {"role": "user", "content": text("Go")},
        {
            "role": "assistant",
            "content": if null_content { Value::Null } else { text("") },
            "tool_calls": [{
                "id": "abcdefghi", "type": "function",
                "function": {"name": "mark_name", "arguments": arguments},
            }],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "mark_name", "content": text("done")},
    ])
}

fn render(
    template: &Jinja,
    special_tokens: &[(String, String)],
    messages: &Value,
) -> Option<String> {
    let variables = [
        ("messages", jinja::value_of(messages)),
        ("tools", ().into()),
        ("documents", ().into()),
        ("add_generation_prompt", true.into()),
    ];
    let special = special_tokens
        .iter()
        .map(|(name, token)| (name.as_str(), token.as_str().into()));
    template
        .render(minijinja::Value::from_pairs(special.chain(variables)), 0)
        .ok()
}

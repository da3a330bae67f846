//! Detection of the message shape that a template handles.
//!
//! SGLang and vLLM look for a loop over `message['content']` in the template's syntax tree. Here
//! the template is rendered with trial messages instead. That also sees through macros and
//! renamed variables (as llama.cpp's minja does).

use serde_json::{Value, json};

use super::content::ContentFormat;
use super::jinja::Jinja;
use super::probe::{MARK, Probe, TOOL, shows};
use super::roles::Roles;
use super::thinking::Thinking;

/// Replacement for the content of a message that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoContent {
    /// No key, as in transformers.
    Absent,
    /// The empty string, for templates that use the content of every message.
    Empty,
    /// `none`, by which DeepSeek's first templates tell calls from answers.
    Null,
}

/// The shape of messages that a template handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageShape {
    pub content: ContentFormat,
    /// Replacement in a message without content.
    pub no_content: NoContent,
    /// Replacement in a message without content that calls tools.
    pub calls_content: NoContent,
    /// True if arguments of tool calls are objects, which most templates print as JSON. False if
    /// they stay JSON in a string, as on the wire (the first DeepSeek templates).
    pub object_arguments: bool,
    pub roles: Roles,
    /// Roles in requests with tools, since templates may show tools with the instructions.
    pub roles_beside_tools: Roles,
    pub thinking: Thinking,
    /// True if the template shows the tools of a request.
    pub shows_tools: bool,
}

/// Returns the shape that a template handles, and true if the template rendered an ordinary
/// conversation.
pub(super) fn detect(
    template: &Jinja,
    special_tokens: &[(String, String)],
) -> (MessageShape, bool) {
    let with = |content| Probe {
        template,
        special_tokens,
        content,
        tools: false,
    };
    let user = |format| {
        let probe = with(format);
        probe.render(&json!([probe.message("user", MARK)]))
    };
    let string = user(ContentFormat::String);
    let parts = user(ContentFormat::PartsOnly);
    let content = match (shows(string.as_deref()), shows(parts.as_deref())) {
        (true, true) => ContentFormat::OpenAi,
        (false, true) => ContentFormat::PartsOnly,
        _ => ContentFormat::String,
    };
    let probe = with(content);
    let (calls_content, object_arguments) = calls(&probe);
    let shape = MessageShape {
        content,
        no_content: no_content(&probe),
        calls_content,
        object_arguments,
        roles: Roles::detect(&probe),
        roles_beside_tools: Roles::detect(&Probe {
            tools: true,
            ..probe
        }),
        shows_tools: shows_tools(&probe),
        thinking: Thinking::detect(&probe, &tool_call(&probe, calls_content, object_arguments)),
    };
    (shape, string.is_some() || parts.is_some())
}

fn shows_tools(probe: &Probe<'_>) -> bool {
    let messages = json!([probe.message("system", "Help"), probe.message("user", "Go")]);
    // Some templates take no system message.
    let turns = [&messages, &json!([messages[1]])];
    turns.into_iter().any(|messages| {
        let text = Probe {
            tools: true,
            ..*probe
        }
        .render(messages);
        text.is_some_and(|text| text.contains(TOOL))
    })
}

fn no_content(probe: &Probe<'_>) -> NoContent {
    let silent = json!([
        probe.message("user", "Go"),
        {"role": "assistant"},
        probe.message("user", "Go on"),
    ]);
    match probe.render(&silent) {
        Some(_) => NoContent::Absent,
        None => NoContent::Empty,
    }
}

/// Finds how to render a message that only calls tools without loss: the content, and the form of
/// the arguments.
fn calls(probe: &Probe<'_>) -> (NoContent, bool) {
    use NoContent::{Absent, Empty, Null};
    let shapes = [true, false].map(|object| [Absent, Empty, Null].map(|none| (none, object)));
    let shown = |&(none, object): &(NoContent, bool)| {
        let text = probe.render(&tool_call(probe, none, object));
        // A printed Python dictionary is not JSON.
        text.is_some_and(|t| t.contains(MARK) && t.contains("mark_name") && !t.contains("{'"))
    };
    let shape = shapes.into_iter().flatten().find(shown);
    shape.unwrap_or((Empty, true))
}

fn tool_call(probe: &Probe<'_>, none: NoContent, object_arguments: bool) -> Value {
    let arguments = json!({"mark_key": MARK});
    let arguments = if object_arguments {
        arguments
    } else {
        arguments.to_string().into()
    };
    let mut call = json!({
        "role": "assistant",
        "tool_calls": [{
            "id": "abcdefghi", "type": "function",
            "function": {"name": "mark_name", "arguments": arguments},
        }],
    });
    match none {
        NoContent::Absent => {}
        NoContent::Empty => call["content"] = probe.text(""),
        NoContent::Null => call["content"] = Value::Null,
    }
    let result = probe.text("done");
    json!([
        probe.message("user", "Go"),
        call,
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "mark_name", "content": result},
    ])
}

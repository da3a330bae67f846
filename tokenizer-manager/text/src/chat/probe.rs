//! Trial conversations that a template renders when it is loaded.

use serde_json::{Value, json};

use super::content::ContentFormat;
use super::jinja::{self, Jinja};

/// A text that no template contains, to be looked for in the rendered prompt.
pub(super) const MARK: &str = "Aq7Content7qA";

/// Description of the tool in conversations with a tool.
pub(super) const TOOL: &str = "Cr9Tool9rC";

/// A template, and the form of content that it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    pub template: &'a Jinja,
    pub special_tokens: &'a [(String, String)],
    pub content: ContentFormat,
    /// True if the conversations have a tool.
    pub tools: bool,
}

impl Probe<'_> {
    /// Renders these messages; `None` if the template refuses them.
    pub(super) fn render(&self, messages: &Value) -> Option<String> {
        let tools = if self.tools {
            jinja::value_of(&tool())
        } else {
            ().into()
        };
        let variables = [
            ("messages", jinja::value_of(messages)),
            ("tools", tools),
            ("documents", ().into()),
            ("add_generation_prompt", true.into()),
        ];
        let special = self.special_tokens.iter();
        let special = special.map(|(name, token)| (name.as_str(), token.as_str().into()));
        self.template
            .render(minijinja::Value::from_pairs(special.chain(variables)), 0)
            .ok()
    }

    /// Returns a text as the content that the template takes.
    pub(super) fn text(&self, text: &str) -> Value {
        match self.content {
            ContentFormat::PartsOnly => json!([{"type": "text", "text": text}]),
            ContentFormat::String | ContentFormat::OpenAi => text.into(),
        }
    }

    /// Returns a message with a text.
    pub(super) fn message(&self, role: &str, text: &str) -> Value {
        json!({"role": role, "content": self.text(text)})
    }
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string", "description": "Where"}}});
    let function = json!({"name": "look", "description": TOOL, "parameters": parameters});
    json!([{"type": "function", "function": function}])
}

/// Returns true if the mark appears outside a printed list.
pub(super) fn shows(text: Option<&str>) -> bool {
    let quoted = [format!("'{MARK}'"), format!("\"{MARK}\"")];
    text.is_some_and(|text| text.contains(MARK) && !quoted.iter().any(|q| text.contains(q)))
}

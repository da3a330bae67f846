//! Finding out in which shape a template wants a message's content.
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

/// The format of a template, and whether it rendered at least one of the probes at all.
pub(super) fn detect(
    template: &Jinja,
    special_tokens: &[(String, String)],
) -> (ContentFormat, bool) {
    let string = probe(template, special_tokens, &json!(MARK));
    let parts = probe(
        template,
        special_tokens,
        &json!([{"type": "text", "text": MARK}]),
    );
    let format = match (string, parts) {
        (Probe::Shown, Probe::Shown) => ContentFormat::OpenAi,
        (_, Probe::Shown) => ContentFormat::PartsOnly,
        _ => ContentFormat::String,
    };
    (format, string != Probe::Failed || parts != Probe::Failed)
}

const MARK: &str = "Aq7Content7qA";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// The text appears, and not inside a printed list.
    Shown,
    /// The template rendered something else.
    Hidden,
    Failed,
}

fn probe(template: &Jinja, special_tokens: &[(String, String)], content: &Value) -> Probe {
    let message = jinja::value_of(&json!({"role": "user", "content": content}));
    let variables = [
        ("messages", minijinja::Value::from(vec![message])),
        ("tools", ().into()),
        ("documents", ().into()),
        ("add_generation_prompt", true.into()),
    ];
    let special = special_tokens
        .iter()
        .map(|(name, token)| (name.as_str(), token.as_str().into()));
    let variables = minijinja::Value::from_pairs(special.chain(variables));
    match template.render(variables) {
        Ok(text) => {
            let quoted = [format!("'{MARK}'"), format!("\"{MARK}\"")];
            let shown = text.contains(MARK) && !quoted.iter().any(|quoted| text.contains(quoted));
            if shown { Probe::Shown } else { Probe::Hidden }
        }
        Err(_) => Probe::Failed,
    }
}

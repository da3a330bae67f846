//! `continue_final_message`: the prompt ends inside the last message, for the model to go on.

use minijinja::Value;

use super::TemplateError;
use super::content::parts;
use super::message::Message;

/// Tag that ends the last message's content. Its trailing space shows whether the template trims
/// content.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to the text of the last message (its last text part).
pub(super) fn mark(messages: &mut [Message<'_>]) -> Result<(), TemplateError> {
    let marked = messages.last_mut().and_then(|message| {
        let content = marked(message.get("content")?)?;
        message.set("content", content);
        Some(())
    });
    marked.ok_or_else(|| {
        TemplateError::invalid(
            "continue_final_message needs a last message with text content to continue",
        )
    })
}

fn marked(content: &Value) -> Option<Value> {
    if let Some(text) = content.as_str() {
        return Some(Value::from(format!("{text}{TAG}")));
    }
    let mut parts: Vec<Value> = parts(content).collect();
    let text_of = |part: &Value| Some(part.get_attr("text").ok()?.as_str()?.to_owned());
    let (part, text) = parts
        .iter_mut()
        .rev()
        .find_map(|part| text_of(part).map(|text| (part, text)))?;
    let marked = [(Value::from("text"), Value::from(format!("{text}{TAG}")))];
    let fields = part.try_iter().ok()?.filter_map(|name| {
        let field = part.get_item(&name).ok()?;
        Some((name, field))
    });
    *part = Value::from_pairs(fields.chain(marked).collect::<Vec<_>>());
    Some(Value::from(parts))
}

/// Cuts the rendered prompt at the tag. If the template trims content, the whitespace before the
/// tag goes too (`apply_chat_template` in transformers).
pub(super) fn cut(mut prompt: String) -> Result<String, TemplateError> {
    let Some(at) = prompt.rfind(TAG.trim_end()) else {
        return Err(TemplateError::invalid(
            "continue_final_message is set, but the chat template does not print the last message as it is, so it \
             cannot be continued",
        ));
    };
    let kept = if prompt[at..].starts_with(TAG) {
        at
    } else {
        prompt[..at].trim_end().len()
    };
    prompt.truncate(kept);
    Ok(prompt)
}

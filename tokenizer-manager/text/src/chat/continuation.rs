//! `continue_final_message`: the prompt ends inside the last message, for the model to go on.

use serde_json::Value;

use super::TemplateError;

/// Ends the last message's content. The trailing space shows whether the template trims content.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to the text of the last message (its last text part).
pub(super) fn mark(messages: &mut [Value]) -> Result<(), TemplateError> {
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => {
            parts
                .iter_mut()
                .rev()
                .find_map(|part| match part.get_mut("text") {
                    Some(Value::String(text)) => Some(text),
                    _ => None,
                })
        }
        _ => None,
    };
    let text = text.ok_or_else(|| {
        TemplateError::invalid(
            "continue_final_message needs a last message with text content to continue",
        )
    })?;
    text.push_str(TAG);
    Ok(())
}

/// Cuts the rendered prompt at the tag, with the whitespace before it where the template trims
/// content (`apply_chat_template` in transformers).
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

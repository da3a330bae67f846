//! Fields of a chat request about reasoning.

use lockstep_text::{ReasoningFormat, Turn};
use serde_json::{Map, Value};

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    text::Conversation,
};

/// Values of `reasoning_effort`.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables of templates that turn reasoning on or off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Returns the format of the reasoning that the answer keeps apart from its text; `None` if the
/// model has none, or the request wants reasoning in the text.
pub(super) fn format(
    app: &App,
    request: &ChatRequest,
) -> ApiResult<Option<&'static ReasoningFormat>> {
    if request.separate_reasoning.unwrap_or(true) {
        return Ok(app.text.answers.reasoning);
    }
    if request.include_reasoning == Some(false) {
        return Err(ApiError::invalid(
            "include_reasoning",
            "'include_reasoning': false leaves out only reasoning that is told apart from the \
             text; leave out 'separate_reasoning': false.",
        ));
    }
    Ok(None)
}

/// Returns how the answer to the prompt `text` begins, or to the message `continued` that it goes
/// on with.
pub(super) fn turn(
    request: &ChatRequest,
    format: &ReasoningFormat,
    continued: Option<&str>,
    text: &str,
) -> ApiResult<Turn> {
    if let Some(message) = continued {
        return Ok(format.continued(message));
    }
    let turn = format.turn(text);
    if turn == Turn::Reasoning && request.reasoning_effort.as_deref() == Some("none") {
        return Err(ApiError::unsupported(
            "reasoning_effort",
            "This model always reasons first: its chat template has no switch for that. Use \
             another 'reasoning_effort', or set 'include_reasoning' to false to leave the \
             reasoning out of the answer.",
        ));
    }
    Ok(turn)
}

/// Takes the variables of the template out of the request. An effort turns reasoning off or on,
/// unless the request sets the switch itself.
pub(super) fn kwargs(request: &mut ChatRequest) -> ApiResult<Option<Map<String, Value>>> {
    let kwargs = request.chat_template_kwargs.take();
    let Some(effort) = &request.reasoning_effort else {
        return Ok(kwargs);
    };
    if !EFFORTS.contains(&effort.as_str()) {
        return Err(ApiError::invalid(
            "reasoning_effort",
            format!(
                "Invalid value for 'reasoning_effort': '{effort}' is not one of {}.",
                EFFORTS.join(", ")
            ),
        ));
    }
    let mut kwargs = kwargs.unwrap_or_default();
    for switch in SWITCHES {
        let entry = kwargs.entry(switch);
        entry.or_insert_with(|| Value::from(effort != "none"));
    }
    let entry = kwargs.entry("reasoning_effort");
    entry.or_insert_with(|| effort.as_str().into());
    Ok(Some(kwargs))
}

/// Returns the text of the last message if the answer continues it.
pub(super) fn continued(conversation: &Conversation) -> Option<String> {
    let last = conversation.messages.last()?;
    let text = match &last["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect()
        }
        _ => String::new(),
    };
    conversation.continue_final_message.then_some(text)
}

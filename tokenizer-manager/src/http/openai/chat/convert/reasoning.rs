//! Fields of a chat request about reasoning.

use lockstep_text::ReasoningFormat;
use serde_json::{Map, Value};

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::thinking,
    submission::GenerateSpec,
};

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

/// Refuses an effort of `none` where the prompt makes the model reason all the same.
pub(super) fn check_off(request: &ChatRequest, spec: &GenerateSpec) -> ApiResult<()> {
    let off = request.reasoning_effort.as_deref() == Some("none");
    match off && request.continue_final_message != Some(true) {
        true => thinking::check_off(spec, "reasoning_effort"),
        false => Ok(()),
    }
}

/// Takes the variables of the template out of the request. An effort turns reasoning off or on,
/// unless the request sets the switch itself.
pub(super) fn kwargs(request: &mut ChatRequest) -> ApiResult<Option<Map<String, Value>>> {
    let kwargs = request.chat_template_kwargs.take();
    let Some(effort) = &request.reasoning_effort else {
        return Ok(kwargs);
    };
    let mut kwargs = kwargs.unwrap_or_default();
    thinking::effort(&mut kwargs, "reasoning_effort", effort)?;
    thinking::switch(&mut kwargs, effort != "none");
    Ok(Some(kwargs))
}

//! Fields of a chat request about reasoning.

use lockstep_text::ReasoningFormat;
use serde_json::{Map, Value};

use super::super::types::ChatRequest;
use crate::{app::App, error::ApiResult, http::thinking};

/// Returns the format of the reasoning that the answer keeps apart from its text; `None` if the
/// model has none, or the request wants reasoning in the text.
pub(super) fn format(app: &App, request: &ChatRequest) -> Option<&'static ReasoningFormat> {
    let separate = request.separate_reasoning.unwrap_or(true);
    app.text.answers.reasoning.filter(|_| separate)
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

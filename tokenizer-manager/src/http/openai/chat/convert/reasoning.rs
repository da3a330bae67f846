//! Fields of a chat request about reasoning.

use lockstep_text::ReasoningFormat;
use serde_json::{Map, Value};

use super::super::types::ChatRequest;
use crate::{
    app::App,
    error::{ApiError, ApiResult},
    http::thinking::{self, Asked, Wish, agreed, budget_fields, whole},
    submission::{GenerateSpec, ThinkingBudget},
};

const EFFORT: &str = "reasoning_effort";
const TYPE: &str = "thinking.type";
const BUDGET: &str = "thinking.budget_tokens";

/// Returns the format of the reasoning that the answer keeps apart from its text; `None` if the
/// model has none, or the request wants reasoning in the text.
pub(super) fn format(
    app: &App,
    request: &ChatRequest,
) -> ApiResult<Option<&'static ReasoningFormat>> {
    if request.separate_reasoning.unwrap_or(true) {
        return Ok(app.text.answers.reasoning);
    }
    match is_shown(request)? {
        true => Ok(None),
        false => Err(ApiError::invalid(
            left_out(request),
            format!(
                "'{}' leaves out only reasoning that is told apart from the text; leave out \
                 'separate_reasoning': false.",
                left_out(request)
            ),
        )),
    }
}

/// Returns true if the answer shows the reasoning.
pub(super) fn is_shown(request: &ChatRequest) -> ApiResult<bool> {
    let excluded = Asked::read(request.reasoning.as_ref())?.exclude;
    match request.include_reasoning {
        Some(true) if excluded => Err(ApiError::invalid(
            "reasoning.exclude",
            "'include_reasoning' and 'reasoning.exclude' contradict each other: send one of them.",
        )),
        included => Ok(included.unwrap_or(true) && !excluded),
    }
}

/// Returns the field that leaves reasoning out.
fn left_out(request: &ChatRequest) -> &'static str {
    match request.include_reasoning {
        Some(false) => "include_reasoning",
        _ => "reasoning.exclude",
    }
}

/// Returns the most tokens of the reasoning, under all names.
pub(super) fn budget(request: &ChatRequest) -> ApiResult<Option<ThinkingBudget>> {
    let thinking = request.thinking.as_ref();
    let tokens = thinking.and_then(|thinking| thinking.get("budget_tokens"));
    let tokens = tokens.filter(|tokens| !tokens.is_null()).map(|tokens| {
        let whole = whole(tokens).map(|tokens| ThinkingBudget {
            param: BUDGET,
            tokens,
        });
        whole.ok_or_else(|| {
            let message = format!("Invalid value for '{BUDGET}': it must be an integer.");
            ApiError::invalid(BUDGET, message)
        })
    });
    let asked = Asked::read(request.reasoning.as_ref())?.budget;
    budget_fields!(request).budget(asked.into_iter().chain(tokens.transpose()?))
}

/// Returns what turns reasoning on or off, under all names but the template's own.
fn wish(request: &ChatRequest) -> ApiResult<Option<Wish>> {
    let thinking = request.thinking.as_ref();
    let kind = thinking.and_then(|thinking| thinking.get("type"));
    let thinking = match kind.map(Value::as_str) {
        None => None,
        Some(Some("enabled" | "adaptive")) => Some(true),
        Some(Some("disabled")) => Some(false),
        Some(_) => {
            let message = format!(
                "Invalid value for '{TYPE}': expected \"enabled\", \"adaptive\" or \"disabled\"."
            );
            return Err(ApiError::invalid(TYPE, message));
        }
    };
    let effort = request.reasoning_effort.as_deref();
    let wishes = [
        (EFFORT, effort.map(|effort| effort != "none")),
        ("enable_thinking", request.enable_thinking),
        (TYPE, thinking),
    ];
    let wishes = wishes.into_iter();
    let wishes = wishes.filter_map(|(param, on)| on.map(|on| Wish { param, on }));
    agreed(wishes.chain(Asked::read(request.reasoning.as_ref())?.wishes()))
}

/// Refuses to turn reasoning off where the prompt makes the model reason all the same.
pub(super) fn check_off(request: &ChatRequest, spec: &GenerateSpec) -> ApiResult<()> {
    match wish(request)? {
        Some(wish) if !wish.on && request.continue_final_message != Some(true) => {
            thinking::check_off(spec, wish.param)
        }
        _ => Ok(()),
    }
}

/// Takes the variables of the template out of the request. What turns reasoning off or on does so
/// unless the request sets the template's switch itself.
pub(super) fn kwargs(request: &mut ChatRequest) -> ApiResult<Option<Map<String, Value>>> {
    let kwargs = request.chat_template_kwargs.take();
    let wish = wish(request)?;
    let asked = Asked::read(request.reasoning.as_ref())?;
    if wish.is_none() && asked.effort.is_none() {
        return Ok(kwargs);
    }
    let mut kwargs = kwargs.unwrap_or_default();
    if let Some(effort) = &request.reasoning_effort {
        if asked.effort.is_some_and(|asked| asked != effort) {
            return Err(ApiError::invalid(
                "reasoning.effort",
                "'reasoning_effort' and 'reasoning.effort' differ: send one of them.",
            ));
        }
        thinking::effort(&mut kwargs, EFFORT, effort)?;
    }
    asked.set(&mut kwargs, wish)?;
    Ok(Some(kwargs))
}

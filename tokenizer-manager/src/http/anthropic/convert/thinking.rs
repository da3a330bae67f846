//! Fields of a Messages request about reasoning.

use serde_json::{Map, Value};

use super::MessagesRequest;
use crate::{
    error::{ApiError, ApiResult},
    http::thinking::{Wish, agreed, effort, switch, whole},
    submission::ThinkingBudget,
};

/// Minimum of `budget_tokens`.
const LEAST_BUDGET: i64 = 1024;
/// Name of that field.
pub(super) const BUDGET: &str = "thinking.budget_tokens";

/// Returns the `budget_tokens` of thinking that is turned on, which [`kwargs`] checks.
pub(super) fn budget(request: &MessagesRequest) -> Option<ThinkingBudget> {
    let thinking = request.thinking.as_ref()?;
    let tokens = thinking.get("budget_tokens").and_then(whole)?;
    (thinking["type"] == "enabled").then_some(ThinkingBudget {
        param: BUDGET,
        tokens,
    })
}

/// Takes the variables of the template out of the request, and tells whether the text of the
/// reasoning is shown. `thinking` turns reasoning on or off, unless the request sets the
/// template's switch itself.
pub(super) fn kwargs(
    request: &mut MessagesRequest,
) -> ApiResult<(Option<Map<String, Value>>, bool)> {
    let mut kwargs = request.chat_template_kwargs.take().unwrap_or_default();
    let config = request.output_config.as_ref();
    match config.and_then(|config| config.get("effort")) {
        None | Some(Value::Null) => {}
        Some(Value::String(value)) => effort(&mut kwargs, "output_config.effort", value)?,
        Some(_) => return Err(invalid("output_config.effort", "it must be a string")),
    }
    let wish = |param, on| Wish { param, on };
    let (thinking, shown) = match &request.thinking {
        None | Some(Value::Null) => (None, true),
        Some(Value::Object(thinking)) => {
            let on = is_on(thinking, request.max_tokens)?;
            (Some(wish("thinking.type", on)), is_shown(thinking)?)
        }
        Some(_) => return Err(invalid("thinking", "it must be an object")),
    };
    let own = request.enable_thinking;
    let own = own.map(|on| wish("enable_thinking", on));
    if let Some(wish) = agreed(own.into_iter().chain(thinking))? {
        switch(&mut kwargs, wish.on);
    }
    Ok((Some(kwargs).filter(|kwargs| !kwargs.is_empty()), shown))
}

fn is_on(thinking: &Map<String, Value>, max_tokens: Option<i64>) -> ApiResult<bool> {
    match thinking.get("type").and_then(Value::as_str) {
        Some("disabled") => Ok(false),
        Some("adaptive") => Ok(true),
        Some("enabled") => {
            let budget = thinking.get("budget_tokens").and_then(whole);
            let most = max_tokens.unwrap_or(i64::MAX);
            match budget {
                Some(budget) if budget < LEAST_BUDGET => Err(invalid(
                    BUDGET,
                    &format!("{budget} is less than {LEAST_BUDGET}"),
                )),
                Some(budget) if budget >= most => Err(invalid(
                    BUDGET,
                    &format!("{budget} is not less than 'max_tokens' ({most})"),
                )),
                Some(_) => Ok(true),
                None => Err(invalid(BUDGET, "it must be an integer")),
            }
        }
        _ => Err(invalid(
            "thinking.type",
            "expected \"enabled\", \"adaptive\" or \"disabled\"",
        )),
    }
}

fn is_shown(thinking: &Map<String, Value>) -> ApiResult<bool> {
    match thinking.get("display") {
        None | Some(Value::Null) => Ok(true),
        Some(Value::String(display)) if display == "summarized" => Ok(true),
        Some(Value::String(display)) if display == "omitted" => Ok(false),
        Some(_) => Err(invalid(
            "thinking.display",
            "expected \"summarized\" or \"omitted\"",
        )),
    }
}

fn invalid(field: &'static str, problem: &str) -> ApiError {
    ApiError::invalid(field, format!("Invalid value for '{field}': {problem}."))
}

//! Variables of chat templates that turn reasoning on and off, and limits of reasoning.

mod asked;

use lockstep_text::Turn;
use serde_json::{Map, Value};

use crate::{
    error::{ApiError, ApiResult},
    submission::{GenerateSpec, ThinkingBudget, integer},
};

pub(super) use asked::{Asked, Wish, agreed};

/// Efforts that clients may ask for.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables of templates that turn reasoning on or off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Turns reasoning on or off, unless a switch is set already.
pub(super) fn switch(kwargs: &mut Map<String, Value>, on: bool) {
    for switch in SWITCHES {
        kwargs.entry(switch).or_insert(Value::Bool(on));
    }
}

/// Sets the effort, unless it is set already.
///
/// # Errors
/// 400 naming `field`, for an unknown effort.
pub(super) fn effort(
    kwargs: &mut Map<String, Value>,
    field: &'static str,
    effort: &str,
) -> ApiResult<()> {
    if !EFFORTS.contains(&effort) {
        return Err(ApiError::invalid(
            field,
            format!(
                "Invalid value for '{field}': '{effort}' is not one of {}.",
                EFFORTS.join(", ")
            ),
        ));
    }
    let entry = kwargs.entry("reasoning_effort");
    entry.or_insert_with(|| effort.into());
    Ok(())
}

/// Refuses to turn reasoning off where the prompt opens it all the same.
///
/// # Errors
/// 400 naming `field`.
pub(super) fn check_off(spec: &GenerateSpec, field: &'static str) -> ApiResult<()> {
    match spec.answer.reasoning {
        Some((_, Turn::Reasoning)) => Err(ApiError::unsupported(
            field,
            format!(
                "This model always reasons first: its chat template has no switch for that. \
                 Use another '{field}'."
            ),
        )),
        _ => Ok(()),
    }
}

/// Fields that limit the tokens of reasoning, under the names of several servers.
#[derive(Debug, Default)]
pub(super) struct BudgetFields<'a> {
    /// vLLM's.
    pub thinking_token_budget: Option<i64>,
    /// llama.cpp's.
    pub thinking_budget_tokens: Option<i64>,
    /// llama.cpp's too.
    pub reasoning_budget_tokens: Option<i64>,
    /// Qwen's.
    pub thinking_budget: Option<i64>,
    /// SGLang's, with a `thinking_budget` inside.
    pub custom_params: Option<&'a Map<String, Value>>,
}

/// Returns the limit fields of a request, which all conversations have.
macro_rules! budget_fields {
    ($request:expr) => {
        $crate::http::thinking::BudgetFields {
            thinking_token_budget: $request.thinking_token_budget,
            thinking_budget_tokens: $request.thinking_budget_tokens,
            reasoning_budget_tokens: $request.reasoning_budget_tokens,
            thinking_budget: $request.thinking_budget,
            custom_params: $request.custom_params.as_ref(),
        }
    };
}
pub(super) use budget_fields;

impl BudgetFields<'_> {
    /// Returns the limit that they ask for, or `other` fields, which an API has of its own. -1 asks
    /// for none.
    ///
    /// # Errors
    /// 400 for a value of another form, and for two limits that differ.
    pub fn budget(
        self,
        other: impl IntoIterator<Item = ThinkingBudget>,
    ) -> ApiResult<Option<ThinkingBudget>> {
        const CUSTOM: &str = "custom_params.thinking_budget";
        let custom = self
            .custom_params
            .and_then(|params| params.get("thinking_budget"));
        let custom = match custom {
            None | Some(Value::Null) => None,
            Some(value) => Some(whole(value).ok_or_else(|| {
                let message = format!("Invalid value for '{CUSTOM}': it must be an integer.");
                ApiError::invalid(CUSTOM, message)
            })?),
        };
        let fields = [
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking_budget_tokens", self.thinking_budget_tokens),
            ("reasoning_budget_tokens", self.reasoning_budget_tokens),
            ("thinking_budget", self.thinking_budget),
            (CUSTOM, custom),
        ];
        let given = fields.into_iter().filter_map(|(param, tokens)| {
            let tokens = tokens?;
            Some(ThinkingBudget { param, tokens })
        });
        let mut found: Option<ThinkingBudget> = None;
        for budget in given.chain(other) {
            integer(budget.param, budget.tokens, -1, i64::from(i32::MAX))?;
            match &found {
                Some(first) if first.tokens != budget.tokens => {
                    let message = format!(
                        "'{}' ({}) and '{}' ({}) differ: send one of them.",
                        first.param, first.tokens, budget.param, budget.tokens
                    );
                    return Err(ApiError::invalid(budget.param, message));
                }
                _ => found = Some(budget),
            }
        }
        Ok(found.filter(|budget| budget.tokens >= 0))
    }
}

/// Returns a whole number, which may be written like `2048.0`.
pub(super) fn whole(number: &Value) -> Option<i64> {
    let float = number.as_f64().filter(|float| float.fract() == 0.0);
    // Larger ones than a float holds exactly are no budgets.
    number.as_i64().or_else(|| float.map(|float| float as i64))
}

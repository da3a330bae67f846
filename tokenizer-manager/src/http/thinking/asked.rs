//! The object `reasoning` of a request: OpenRouter's, of which OpenAI's Responses API has a part.

use serde_json::{Map, Value};

use super::{effort, switch, whole};
use crate::{
    error::{ApiError, ApiResult},
    submission::ThinkingBudget,
};

/// A field that turns reasoning on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Wish {
    /// Name of the field.
    pub param: &'static str,
    /// True if it turns reasoning on.
    pub on: bool,
}

/// Wishes of the object `reasoning`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Asked<'a> {
    /// Effort of the reasoning.
    pub effort: Option<&'a str>,
    /// Most tokens of the reasoning.
    pub budget: Option<ThinkingBudget>,
    /// True if the reasoning is left out of the answer.
    pub exclude: bool,
    enabled: Option<bool>,
}

const EFFORT: &str = "reasoning.effort";
const MAX_TOKENS: &str = "reasoning.max_tokens";
const ENABLED: &str = "reasoning.enabled";

impl<'a> Asked<'a> {
    /// Reads the object. Its fields may be `null`.
    ///
    /// # Errors
    /// 400 naming the field, for a value of another type.
    pub fn read(reasoning: Option<&'a Map<String, Value>>) -> ApiResult<Self> {
        let field = |name| {
            let value = reasoning.and_then(|fields| fields.get(name));
            value.filter(|value| !value.is_null())
        };
        let flag = |param, name| {
            let value = field(name).map(|value| typed(param, value.as_bool(), "true or false"));
            value.transpose()
        };
        let text = field("effort").map(|value| typed(EFFORT, value.as_str(), "a string"));
        let tokens = field("max_tokens").map(|value| typed(MAX_TOKENS, whole(value), "an integer"));
        Ok(Self {
            effort: text.transpose()?,
            budget: tokens.transpose()?.map(|tokens| ThinkingBudget {
                param: MAX_TOKENS,
                tokens,
            }),
            exclude: flag("reasoning.exclude", "exclude")?.unwrap_or(false),
            enabled: flag(ENABLED, "enabled")?,
        })
    }

    /// Returns what turns reasoning on or off. A budget turns it on.
    pub fn wishes(&self) -> impl Iterator<Item = Wish> + use<> {
        let wish = |param, on| Wish { param, on };
        let effort = self.effort.map(|effort| wish(EFFORT, effort != "none"));
        let budget = self.budget.as_ref().filter(|budget| budget.tokens > 0);
        let enabled = self.enabled.map(|on| wish(ENABLED, on));
        let wishes = [enabled, effort, budget.map(|_| wish(MAX_TOKENS, true))];
        wishes.into_iter().flatten()
    }

    /// Sets the variables of the template. Reasoning is turned on or off by `wish`, unless the
    /// request sets the switch itself.
    ///
    /// # Errors
    /// 400 for an unknown effort.
    pub fn set(&self, kwargs: &mut Map<String, Value>, wish: Option<Wish>) -> ApiResult<()> {
        if let Some(asked) = self.effort {
            effort(kwargs, EFFORT, asked)?;
        }
        if let Some(wish) = wish {
            switch(kwargs, wish.on);
        }
        Ok(())
    }
}

/// Returns a value of the type that a field must have.
fn typed<T>(param: &'static str, found: Option<T>, expected: &str) -> ApiResult<T> {
    found.ok_or_else(|| {
        let message = format!("Invalid value for '{param}': it must be {expected}.");
        ApiError::invalid(param, message)
    })
}

/// Returns the first wish.
///
/// # Errors
/// 400 if another one contradicts it.
pub(in crate::http) fn agreed(wishes: impl Iterator<Item = Wish>) -> ApiResult<Option<Wish>> {
    let mut first: Option<Wish> = None;
    for wish in wishes {
        let agreed = *first.get_or_insert(wish);
        if agreed.on != wish.on {
            let word = |on| if on { "on" } else { "off" };
            let message = format!(
                "'{}' turns reasoning {} and '{}' turns it {}: send one of them.",
                agreed.param,
                word(agreed.on),
                wish.param,
                word(wish.on)
            );
            return Err(ApiError::invalid(wish.param, message));
        }
    }
    Ok(first)
}

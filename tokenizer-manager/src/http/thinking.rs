//! Variables of chat templates that turn reasoning on and off.

use lockstep_text::Turn;
use serde_json::{Map, Value};

use crate::{
    error::{ApiError, ApiResult},
    submission::GenerateSpec,
};

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

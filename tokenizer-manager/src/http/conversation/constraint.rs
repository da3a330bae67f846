//! Constraints of an answer beside its other parts.

use lockstep_text::{Calls, ReasoningFormat, Turn};
use lockstep_types::constraint::Reasoning;

use crate::{
    error::{ApiError, ApiResult},
    submission::GenerateSpec,
};

/// Refuses a constraint of an answer that may have tool calls: it would leave no call.
pub(super) fn check(spec: &GenerateSpec, calls: &Calls) -> ApiResult<()> {
    match (&spec.constraint, calls) {
        (Some(constraint), Calls::Parsed(..)) => Err(ApiError::unsupported(
            constraint.param.clone(),
            format!(
                "'{}' beside tools that may be called is not supported by this version: no call \
                 would fulfil it. Send 'tool_choice': \"none\", or leave one of them out.",
                constraint.param
            ),
        )),
        _ => Ok(()),
    }
}

/// Lets the constraint begin behind the reasoning, if the answer has some. `turn` tells how the
/// answer begins.
pub(super) fn after_reasoning(
    spec: &mut GenerateSpec,
    format: Option<&ReasoningFormat>,
    turn: impl FnOnce(&ReasoningFormat) -> Turn,
) {
    let (Some(constraint), Some(format)) = (&mut spec.constraint, format) else {
        return;
    };
    let [open, close] = format.marks;
    let open = match turn(format) {
        Turn::Answer => return,
        Turn::Reasoning => None,
        Turn::Open => Some(open.into()),
    };
    constraint.after = Some(Reasoning {
        open,
        close: close.into(),
    });
}

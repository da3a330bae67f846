//! Constraints of an answer beside its other parts.

use lockstep_text::{ReasoningFormat, Turn};
use lockstep_types::constraint::Reasoning;

use crate::{
    error::{ApiError, ApiResult},
    submission::GenerateSpec,
};

/// Refuses reasoning that stays in the text of an answer whose calls are constrained: what looks
/// like a call there would be taken for one. `turn` tells how the answer begins.
pub(super) fn check_apart(turn: Option<Turn>) -> ApiResult<()> {
    match turn {
        None | Some(Turn::Answer) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "separate_reasoning",
            "'separate_reasoning': false can't be used where calls are constrained and the model \
             may reason first; leave it out.",
        )),
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

//! Constraints on the wire.

use std::sync::Arc;

use lockstep_types::{
    constraint::{CONSTRAINT_BYTES, Constraint, ConstraintKind, Reasoning, Whitespace},
    sampling::InvalidField,
};

use crate::{WireError, pb::lockstep as pb};

/// Reads a constraint. A kind that this build does not know is an error, since the output would
/// be free without it.
pub(crate) fn read(wire: pb::Constraint) -> Result<Arc<Constraint>, WireError> {
    let kind = match wire.kind() {
        pb::ConstraintKind::JsonSchema => ConstraintKind::JsonSchema,
        pb::ConstraintKind::Regex => ConstraintKind::Regex,
        pb::ConstraintKind::Lark => ConstraintKind::Lark,
        pb::ConstraintKind::Choice => ConstraintKind::Choice,
        pb::ConstraintKind::StructuralTag => ConstraintKind::StructuralTag,
        pb::ConstraintKind::Anything => ConstraintKind::Anything,
        pb::ConstraintKind::Unspecified => return Err(WireError::Missing("constraint.kind")),
    };
    let whitespace = match wire.whitespace() {
        pb::Whitespace::Bounded => Whitespace::Bounded,
        pb::Whitespace::Compact => Whitespace::Compact,
        pb::Whitespace::Unspecified => return Err(WireError::Missing("constraint.whitespace")),
    };
    let marks = |after: &pb::Reasoning| {
        let open = after.open.as_ref().map_or(0, String::len);
        open + after.close.len() + after.breaks.iter().map(String::len).sum::<usize>()
    };
    let bytes = wire.text.len().max(wire.after.as_ref().map_or(0, marks));
    if bytes > CONSTRAINT_BYTES {
        return Err(WireError::Invalid(InvalidField {
            field: "constraint",
            message: format!("{bytes} bytes are more than {CONSTRAINT_BYTES}"),
        }));
    }
    Ok(Arc::new(Constraint {
        kind,
        text: wire.text.into(),
        whitespace,
        after: wire.after.map(|after| Reasoning {
            open: after.open.map(Into::into),
            close: after.close.into(),
            limit: after.limit,
            again: after.again,
            breaks: after.breaks.into_iter().map(Into::into).collect(),
        }),
    }))
}

/// Returns a constraint as a message.
pub(crate) fn write(constraint: &Constraint) -> pb::Constraint {
    let Constraint {
        kind,
        text,
        whitespace,
        after,
    } = constraint;
    let kind = match kind {
        ConstraintKind::JsonSchema => pb::ConstraintKind::JsonSchema,
        ConstraintKind::Regex => pb::ConstraintKind::Regex,
        ConstraintKind::Lark => pb::ConstraintKind::Lark,
        ConstraintKind::Choice => pb::ConstraintKind::Choice,
        ConstraintKind::StructuralTag => pb::ConstraintKind::StructuralTag,
        ConstraintKind::Anything => pb::ConstraintKind::Anything,
    };
    let whitespace = match whitespace {
        Whitespace::Bounded => pb::Whitespace::Bounded,
        Whitespace::Compact => pb::Whitespace::Compact,
    };
    pb::Constraint {
        kind: kind.into(),
        text: text.to_string(),
        whitespace: whitespace.into(),
        after: after.as_ref().map(|after| pb::Reasoning {
            open: after.open.as_deref().map(str::to_owned),
            close: after.close.to_string(),
            limit: after.limit,
            again: after.again,
            breaks: after.breaks.iter().map(ToString::to_string).collect(),
        }),
    }
}

//! Bounds on a constraint before it is compiled. What they refuse would take seconds, or die
//! half-way through an output.

mod formats;
mod lark;
mod regex;
mod schema;
mod types;
mod words;

use lockstep_types::constraint::CONSTRAINT_BYTES;

use crate::ConstraintError;

pub(crate) use lark::{is_gbnf, lark, nested};
pub(crate) use regex::{regex, whole};
pub(crate) use schema::{given_schema, schema};

/// Most texts of all enumerations of a constraint.
const MOST_VALUES: usize = 2000;

/// Checks the length of a constraint's text.
pub(crate) fn length(text: &str) -> Result<(), ConstraintError> {
    if text.len() > CONSTRAINT_BYTES {
        return Err(ConstraintError::refused(format!(
            "it has {} bytes; the limit is {CONSTRAINT_BYTES}",
            text.len()
        )));
    }
    Ok(())
}

/// Checks the number of enumerated values.
pub(crate) fn values(count: usize) -> Result<(), ConstraintError> {
    if count > MOST_VALUES {
        return Err(ConstraintError::refused(format!(
            "it enumerates {count} values; the limit is {MOST_VALUES}"
        )));
    }
    Ok(())
}

//! Errors in a message from another process.

use lockstep_types::sampling::InvalidField;

/// A message with a missing or invalid field.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// A required field is absent.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A value outside its field's range.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
}

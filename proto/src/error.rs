//! What can be wrong with a message from another process.

use lockstep_types::sampling::InvalidField;

/// A message that does not say what it must.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// A field without which the message means nothing is absent.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A value outside what the field may hold.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
}

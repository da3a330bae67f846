//! What can be wrong with a message from another process.

/// A message that does not say what it must.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// A field without which the message means nothing is absent.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A value outside what the field may hold.
    #[error("field `{field}`: {message}")]
    Invalid {
        /// The field's name in the .proto file.
        field: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
}

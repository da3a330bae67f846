//! Failures of what a template does.

use minijinja::{Error, ErrorKind};

/// A failure in our own words.
pub(in crate::chat) fn fail(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The failure of whatever needs a value that there is none of.
pub(in crate::chat) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "the value is undefined")
}

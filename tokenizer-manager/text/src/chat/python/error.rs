//! Errors of a running template.

use minijinja::{Error, ErrorKind};

/// Makes an error with this message.
pub(in crate::chat) fn fail(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Returns the error of an operation on an undefined value.
pub(in crate::chat) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "the value is undefined")
}

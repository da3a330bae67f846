//! Reasons why a GGUF file can't be used.

use std::io;

use crate::shown;

/// Reason why a GGUF file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GgufError {
    /// The file can't be read.
    #[error("{name}: {source}")]
    Read {
        /// Name of the file.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not what its name says, or was cut off.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// Name of the file.
        name: String,
        /// The reason, in words.
        reason: String,
    },
    /// The file asks for something that is not served.
    #[error("{name}: {reason}")]
    Unserved {
        /// Name of the file.
        name: String,
        /// The reason and the remedy, in words.
        reason: String,
    },
}

impl GgufError {
    /// The error for a damaged file.
    pub fn damaged(name: &str, reason: impl AsRef<str>) -> Self {
        Self::Damaged {
            name: name.to_owned(),
            reason: shown(reason.as_ref()),
        }
    }

    /// The error for a file that is not served.
    pub fn unserved(name: &str, reason: impl AsRef<str>) -> Self {
        Self::Unserved {
            name: name.to_owned(),
            reason: shown(reason.as_ref()),
        }
    }
}

impl From<GgufError> for io::Error {
    fn from(error: GgufError) -> Self {
        match error {
            GgufError::Read { ref source, .. } => Self::new(source.kind(), error.to_string()),
            other => Self::other(other.to_string()),
        }
    }
}

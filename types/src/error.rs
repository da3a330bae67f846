//! What can be wrong with a configuration, always with the remedy.

use std::path::PathBuf;

mod model;

pub use model::ModelConfigError;

/// A configuration that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The model's own description.
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    /// One option's value.
    #[error("{option} {value}: {why}. {remedy}.")]
    Value {
        /// The option, such as `--tp-size`.
        option: &'static str,
        /// As given or resolved.
        value: String,
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// Two options that do not go together.
    #[error("{first} and {second}: {why}. {remedy}.")]
    Conflict {
        /// One option, with its value where that matters.
        first: String,
        /// The other.
        second: String,
        /// Why they exclude or need each other.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// An option of another engine that this program does not have.
    #[error("{option} is not an option here: {remedy}.")]
    Unsupported {
        /// The option, with its dashes.
        option: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// Weights and cache do not fit.
    #[error("not enough memory: {need}, but {have}. {remedy}.")]
    Memory {
        /// What is needed.
        need: String,
        /// What there is.
        have: String,
        /// What to do.
        remedy: String,
    },
    /// A file named by an option.
    #[error("{option} {}: {message}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        message: String,
    },
    /// What a command is asked for cannot be done: why, and what to do.
    #[error("{0}")]
    Usage(String),
}

impl ConfigError {
    /// An option's value, what is wrong with it, and what to do.
    pub fn value(
        option: &'static str,
        value: impl std::fmt::Display,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let value = format!("{value}");
        Self::Value {
            option,
            value,
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// A file or folder that an option names, and what is wrong with it.
    pub fn file(option: &'static str, path: &std::path::Path, message: impl Into<String>) -> Self {
        Self::File {
            option,
            path: path.to_owned(),
            message: message.into(),
        }
    }

    /// Two options, or an option and what it meets, that do not go together:
    /// both, why, and what to do.
    pub fn conflict(
        first: impl Into<String>,
        second: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Conflict {
            first: first.into(),
            second: second.into(),
            why: why.into(),
            remedy: remedy.into(),
        }
    }
}

//! Errors in a configuration, each with its remedy.

use std::path::PathBuf;

mod adapter;
mod model;

pub use adapter::AdapterError;
pub use model::ModelConfigError;

/// A configuration that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An error in the model's description.
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    /// An error in the value of one option.
    #[error("{option} {value}: {why}. {remedy}.")]
    Value {
        /// The option, such as `--tp-size`.
        option: &'static str,
        /// The value as given or resolved.
        value: String,
        /// The fault, as a clause.
        why: String,
        /// The remedy, as a sentence.
        remedy: String,
    },
    /// Two options that do not go together.
    #[error("{first} and {second}: {why}. {remedy}.")]
    Conflict {
        /// One option, with its value where that matters.
        first: String,
        /// The other option.
        second: String,
        /// Reason why the two exclude or need each other.
        why: String,
        /// The remedy, as a sentence.
        remedy: String,
    },
    /// An option of another engine that this program does not have.
    #[error("{option} is not an option here: {remedy}.")]
    Unsupported {
        /// The option, with its dashes.
        option: &'static str,
        /// The remedy, as a clause.
        remedy: &'static str,
    },
    /// Weights and cache do not fit.
    #[error("not enough memory: {need}, but {have}. {remedy}.")]
    Memory {
        /// Memory that is needed, in words.
        need: String,
        /// Memory that there is, in words.
        have: String,
        /// The remedy, as a sentence.
        remedy: String,
    },
    /// A file named by an option, or something wrong with it.
    #[error("{option} {}: {message}", path.display())]
    File {
        /// The option, with its dashes.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault.
        message: String,
    },
    /// A command that cannot be done: the reason and the remedy.
    #[error("{0}")]
    Usage(String),
}

impl ConfigError {
    /// Makes [`Self::Value`] of an option, its value, the fault and the remedy.
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

    /// Makes [`Self::File`] of an option, the file or folder that it names, and the fault.
    pub fn file(option: &'static str, path: &std::path::Path, message: impl Into<String>) -> Self {
        Self::File {
            option,
            path: path.to_owned(),
            message: message.into(),
        }
    }

    /// Makes [`Self::Conflict`] of two options, or an option and a circumstance, with the
    /// reason and the remedy.
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

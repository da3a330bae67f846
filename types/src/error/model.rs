//! Errors in a model's description, each with its remedy.

use std::path::PathBuf;

/// A model folder that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelConfigError {
    /// `config.json` is missing or unreadable.
    #[error("{}: {message}. --model-path must name a folder with a Hugging Face model \
             (config.json, safetensors, tokenizer.json).", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error message.
        message: String,
    },
    /// A GGUF file can't be read, is damaged, or has something that is not served.
    #[error("{message}.")]
    Gguf {
        /// The file, the fault and the remedy.
        message: String,
    },
    /// The file is not the JSON object it should be.
    #[error("{}: {message}. The file is damaged; fetch the model again.", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Place and kind of the damage.
        message: String,
    },
    /// A key is absent or has a value that makes no sense.
    #[error("{}: `{key}` {message}. The file is damaged or of an unknown kind.", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with its parents.
        key: String,
        /// The fault.
        message: String,
    },
    /// The model needs something that is not served.
    #[error("{}: `{key}` is {value}, which is not supported: {remedy}.", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, with its parents.
        key: String,
        /// The key's value.
        value: String,
        /// The remedy, as a clause.
        remedy: String,
    },
}

//! Errors of adapters (LoRA).

use std::path::PathBuf;

/// Reason why an adapter is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// A file is missing or unreadable.
    #[error(
        "{}: {message}; give a folder as PEFT writes it, with adapter_config.json and \
         adapter_model.safetensors", path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        message: String,
    },
    /// A key has a value that makes no sense, or that is not served.
    #[error("{}: `{key}` {message}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The fault and the remedy.
        message: String,
    },
    /// A tensor is missing, misshapen, or adds to something that adapters may not add to.
    #[error("{}: {tensor} {message}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The fault and the remedy.
        message: String,
    },
}

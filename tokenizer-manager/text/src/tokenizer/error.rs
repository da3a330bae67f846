//! Errors of a tokenizer.

use std::path::PathBuf;

/// Reason why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is no `tokenizer.json`.
    #[error(
        "there is no {path}, which texts need whatever the weights are; a model with only tokenizer.model or vocab files is converted by \
         transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )]
    Missing {
        /// Path where it should be.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not valid JSON, or not the expected JSON.
    #[error("{path} is not valid: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The problem.
        message: String,
    },
    /// The tokenizer's decoder cannot be run token by token.
    #[error(
        "the tokenizer's decoder is not supported: {message}; use a model with a byte-level, byte-fallback, Metaspace \
         or WordPiece decoder"
    )]
    Decoder {
        /// The unsupported step, and the reason.
        message: String,
    },
}

/// Reason why a text could not be tokenized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The text has more tokens than allowed.
    #[error("the text has at least {at_least} tokens, more than the {limit} allowed")]
    TooLong {
        /// The number of tokens, or a lower bound on it.
        at_least: usize,
        /// The caller's limit.
        limit: usize,
        /// True if the text was tokenized to its end.
        exact: bool,
    },
    /// The tokenizer itself failed, for example on a character without a token in a vocabulary
    /// without `<unk>`.
    #[error("the text cannot be tokenized: {message}")]
    Failed {
        /// The tokenizer's message.
        message: String,
    },
}

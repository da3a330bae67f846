//! What can go wrong with a tokenizer.

use std::path::PathBuf;

use crate::chat::TemplateError;

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is no `tokenizer.json`.
    #[error(
        "there is no {path}, which texts need whatever the weights are; a model with only tokenizer.model or vocab files is converted by \
         transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    )]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is unreadable.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{path} is not valid: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The tokenizer's decoder cannot be run token by token.
    #[error(
        "the tokenizer's decoder is not supported: {message}; use a model with a byte-level, byte-fallback, Metaspace \
         or WordPiece decoder"
    )]
    Decoder {
        /// The step that is not supported and why.
        message: String,
    },
    /// The chat template is faulty.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Why a text could not be tokenized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The text has more tokens than allowed.
    #[error("the text has at least {at_least} tokens, more than the {limit} allowed")]
    TooLong {
        /// The number of tokens, or a lower bound on it.
        at_least: usize,
        /// The caller's limit.
        limit: usize,
        /// Whether the text was tokenized to its end.
        exact: bool,
    },
    /// The tokenizer itself failed, for example on a character without a token in a vocabulary
    /// without `<unk>`.
    #[error("the text cannot be tokenized: {message}")]
    Failed {
        /// The tokenizer's words.
        message: String,
    },
}

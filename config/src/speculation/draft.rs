//! What is drafted with, read from its own `config.json`.

use serde::{Deserialize, Serialize};

use crate::ModelConfig;

/// A draft model or head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftModel {
    /// Its layers, as of a model; `vocab_size` is the target's.
    pub model: ModelConfig,
    /// What kind it is.
    pub kind: DraftKind,
}

/// Kinds of draft models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum DraftKind {
    /// A whole model with the target's tokenizer.
    Model,
    /// An EAGLE-1/2 head: the target's last hidden state and the next token's
    /// embedding through `fc` into one layer (Li et al., arXiv:2401.15077).
    Eagle,
    /// An EAGLE-3 head: hidden states of three layers (Li et al., arXiv:2503.01840).
    Eagle3 {
        /// Rows of its output head.
        draft_vocab_size: usize,
        /// The target's layers whose input is captured, ascending.
        capture_layers: Vec<usize>,
    },
}

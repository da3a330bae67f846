//! Draft models, and what they keep of past tokens.

use serde::{Deserialize, Serialize};

use crate::ModelConfig;

/// A draft model or head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftModel {
    /// Description of the draft's layers, as of a model; `vocab_size` is the target's.
    pub model: ModelConfig,
    /// Kind of the draft.
    pub kind: DraftKind,
    /// True if the draft has its own embedding, and does not read the target's.
    pub own_embedding: bool,
    /// True if the draft has its own output head, and does not read the target's.
    pub own_head: bool,
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
        /// Rows of the draft's output head.
        draft_vocab_size: usize,
        /// The target's layers whose input is captured, ascending.
        capture_layers: Vec<usize>,
        /// Norms beyond those that all heads have.
        norms: Eagle3Norms,
    },
    /// The target's own draft layers, in the target's folder: the hidden state behind the target's
    /// final norm and the next token's embedding, each normed, through a projection into one
    /// layer (multi-token prediction, DeepSeek-V3, arXiv:2412.19437). Several layers draft in
    /// turn: each reads the outputs of the one before.
    Nextn {
        /// Names of the tensors of each layer, in the order in which they draft; at least one.
        names: Vec<NextnNames>,
    },
    /// A DFlash model, which fills a block of masks in one pass (Chen et al.,
    /// arXiv:2602.06036).
    Dflash(DflashSpec),
}

/// Norms that some EAGLE-3 heads have, in the names and with the meaning of vLLM. SafeAILab's
/// heads have none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eagle3Norms {
    /// True if one norm runs over the hidden states side by side, before they are projected
    /// (`norm_before_fc`).
    pub before_projection: bool,
    /// True if each hidden state has a norm of its own before the projection, behind
    /// [`Self::before_projection`] (`fc_norm`).
    pub of_layers: bool,
    /// True if the residual stream begins with the normed hidden state
    /// (`norm_before_residual`).
    pub before_residual: bool,
    /// True if the next draft goes on from the output behind the final norm (`norm_output`).
    pub of_output: bool,
}

/// Names of a draft layer's tensors in its target's files, without `.weight`. Several layers may
/// share tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextnNames {
    /// Projection of embedding and hidden state, side by side, to the residual stream.
    pub projection: String,
    /// Norm of the embedding.
    pub embedding_norm: String,
    /// Norm of the hidden state.
    pub hidden_norm: String,
    /// Prefix of the layer's tensors.
    pub layer: String,
    /// Norm of the layer's output, before the target's output head and before the next draft.
    pub norm: String,
}

/// Facts about a DFlash model that no whole model has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DflashSpec {
    /// Tokens of a block: the last known one, and those that are drafted.
    pub block_size: usize,
    /// Token in place of those that are drafted.
    pub mask_token_id: u32,
    /// The target's layers whose input is captured, ascending.
    pub capture_layers: Vec<usize>,
    /// For each layer of the draft, true if a token of a block sees no later one.
    pub causal: Vec<bool>,
}

impl DraftModel {
    /// Returns true if the draft is a part of its target's files.
    pub fn is_in_target(&self) -> bool {
        matches!(self.kind, DraftKind::Nextn { .. })
    }

    /// Number of layers that draft in turn, the first draft by the first of them. 1 for drafts
    /// that are run whole for each draft.
    pub fn layers_in_turn(&self) -> usize {
        match &self.kind {
            DraftKind::Nextn { names } => names.len().max(1),
            DraftKind::Model
            | DraftKind::Eagle
            | DraftKind::Eagle3 { .. }
            | DraftKind::Dflash(_) => 1,
        }
    }

    /// Most draft steps; `None` if the draft may have any number of steps.
    pub fn most_steps(&self) -> Option<usize> {
        match &self.kind {
            DraftKind::Model
            | DraftKind::Eagle
            | DraftKind::Eagle3 { .. }
            | DraftKind::Nextn { .. } => None,
            DraftKind::Dflash(spec) => Some(spec.block_size.saturating_sub(1)),
        }
    }
}

/// KV that drafting keeps per cached token, which decides what prefix keys are made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DraftKv {
    /// No KV.
    #[default]
    None,
    /// Keys and values that depend on the tokens up to their own position, as of a draft model.
    Tokens,
    /// Keys and values that depend on the next token too, as of EAGLE's heads. Prefix keys are
    /// pairs of tokens.
    Pairs,
}

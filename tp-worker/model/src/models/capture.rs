//! Values that leave a pass: logits, and hidden states that it keeps for a drafter.

use lockstep_types::{DflashSpec, DraftKind, DraftModel};

/// End of a pass, behind the final norm. It decides over which tokens the last layer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Logits of the wanted tokens, to score and to sample. Behind its mixer, the last layer
    /// runs over these tokens alone.
    Logits,
    /// Also the hidden state of every token, for a drafter. The last layer runs over every
    /// token.
    HiddenAndLogits,
}

/// Hidden states that a pass keeps for every token. They lie side by side in the columns of
/// [`crate::Transformer::features`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Layers whose input, the residual stream before any norm, is kept; ascending.
    pub layers: Vec<usize>,
    /// True if the last hidden state after the final norm, which the head reads, is kept.
    pub last_hidden: bool,
}

impl CaptureSpec {
    /// Returns the hidden states of the target that a draft model reads.
    pub fn of_draft(draft: &DraftModel) -> Self {
        match &draft.kind {
            DraftKind::Model => Self::default(),
            DraftKind::Eagle | DraftKind::Nextn { .. } => Self {
                layers: Vec::new(),
                last_hidden: true,
            },
            DraftKind::Eagle3 { capture_layers, .. }
            | DraftKind::Dflash(DflashSpec { capture_layers, .. }) => Self {
                layers: capture_layers.clone(),
                last_hidden: false,
            },
        }
    }

    /// Returns the hidden states that rank `rank` of a DP rank keeps, where the lead drafts.
    /// The last hidden state takes collectives over every token, so all ranks keep it.
    pub fn on_rank(self, rank: usize) -> Self {
        match rank {
            0 => self,
            _ => Self {
                layers: Vec::new(),
                ..self
            },
        }
    }

    /// Number of columns, for a model of width `hidden`.
    pub fn width(&self, hidden: usize) -> usize {
        (self.layers.len() + usize::from(self.last_hidden)) * hidden
    }

    /// Returns the end of passes that keep these states.
    pub fn exit(&self) -> Exit {
        match self.last_hidden {
            true => Exit::HiddenAndLogits,
            false => Exit::Logits,
        }
    }

    /// Returns true if nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && !self.last_hidden
    }
}

//! What a pass leaves for a drafter.

use lockstep_types::{DraftKind, DraftModel};

/// Which hidden states of every token a pass keeps, one after the other in the
/// columns of [`crate::Transformer::features`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Layers whose input, the residual stream before any norm, is kept;
    /// ascending.
    pub layers: Vec<usize>,
    /// The last hidden state after the final norm: what the head reads.
    pub last_hidden: bool,
}

impl CaptureSpec {
    /// What a draft model reads of the target.
    pub fn of_draft(draft: &DraftModel) -> Self {
        match &draft.kind {
            DraftKind::Model => Self::default(),
            DraftKind::Eagle => Self {
                layers: Vec::new(),
                last_hidden: true,
            },
            DraftKind::Eagle3 { capture_layers, .. } => Self {
                layers: capture_layers.clone(),
                last_hidden: false,
            },
        }
    }

    /// What rank `rank` of a DP rank keeps where the first of them drafts: the last hidden state takes
    /// collectives over every token, so all ranks keep it.
    pub fn on_rank(self, rank: usize) -> Self {
        match rank {
            0 => self,
            _ => Self {
                layers: Vec::new(),
                ..self
            },
        }
    }

    /// Columns, for a model of width `hidden`.
    pub fn width(&self, hidden: usize) -> usize {
        (self.layers.len() + usize::from(self.last_hidden)) * hidden
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && !self.last_hidden
    }
}

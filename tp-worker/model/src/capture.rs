//! What a pass leaves for a drafter.

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
    /// Columns, for a model of width `hidden`.
    pub fn width(&self, hidden: usize) -> usize {
        (self.layers.len() + usize::from(self.last_hidden)) * hidden
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && !self.last_hidden
    }
}

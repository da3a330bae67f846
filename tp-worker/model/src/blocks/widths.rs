//! Widths of attention's buffers.

use lockstep_backend::AttentionShape;

/// Columns of an attention's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionWidths {
    /// Columns of queries, keys and values.
    pub qkv: usize,
    /// Columns of the attention output.
    pub attended: usize,
}

impl AttentionWidths {
    /// Returns the widths for heads of `shape`.
    pub fn of(shape: &AttentionShape) -> Self {
        Self {
            qkv: shape.qkv_width(),
            attended: shape.out_width(),
        }
    }
}

//! How much memory a device takes, before there is one.

use crate::{AttentionShape, Holds, InputLimits, KvShape, MatrixRole};

/// A weight matrix, by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs, or rows of a table.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// What it is for.
    pub role: MatrixRole,
}

/// The largest pass of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PassShape {
    /// Tokens.
    pub tokens: usize,
    /// Positions of one request, in whole pages.
    pub positions: usize,
    /// Heads.
    pub attention: AttentionShape,
    /// What is multiplied: rows of activations, and the matrix.
    pub products: Vec<(usize, MatrixShape)>,
    /// Elements of all ranks together that [`crate::Backend::gather_to_host`]
    /// brings to this one; 0 on a rank that gets none.
    pub gathered: usize,
}

/// A rank among those that it exchanges data with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// DP ranks that they form.
    pub dp_ranks: usize,
}

impl Place {
    /// Of a rank that exchanges nothing.
    pub const ALONE: Self = Self {
        rank: 0,
        ranks: 1,
        dp_ranks: 1,
    };

    /// Ranks of a DP rank.
    pub fn near(&self) -> usize {
        self.ranks / self.dp_ranks
    }

    /// Whether it leads a DP rank.
    pub fn leads(&self) -> bool {
        self.rank.is_multiple_of(self.near())
    }
}

/// Bytes that a backend allocates, as pure functions of how it is set up.
///
/// A device's crate computes them where it allocates, so that what is charged
/// before the start is what is taken after it.
pub trait DeviceMemory {
    /// A packed matrix.
    fn matrix_bytes(&self, matrix: MatrixShape) -> u64;
    /// A vector of `len` elements.
    fn vector_bytes(&self, len: usize) -> u64;
    /// Rotary angles of `half` pairs at each of `positions` positions.
    fn rope_bytes(&self, positions: usize, half: usize) -> u64;
    /// Activations `[rows, width]`.
    fn tensor_bytes(&self, rows: usize, width: usize, holds: Holds) -> u64;
    /// Room for the batches within `limits`.
    fn inputs_bytes(&self, limits: &InputLimits) -> u64;
    /// A paged cache, when it is full.
    fn kv_bytes(&self, cache: &KvShape) -> u64;
    /// Whether it may choose the tokens of passes that it runs with so many ranks, one of
    /// which has whole rows of logits then.
    fn chooses(&self, ranks: usize) -> bool {
        ranks == 1
    }
    /// Of the host's memory, beside a device that has its own: what its data passes
    /// through on a rank in that place, in any of these passes.
    fn host_bytes(&self, passes: &[PassShape], place: Place) -> u64 {
        let _ = (passes, place);
        0
    }
    /// Of the device's own memory, what takes several ranks' data from device to device: the
    /// library's communicators on a rank in that place, which it opens before anything else.
    fn exchange_bytes(&self, place: Place) -> u64 {
        let _ = place;
        0
    }
    /// Of the device's own memory, where logits of several ranks come together on a rank in
    /// that place, in any of these passes.
    fn gathered_bytes(&self, passes: &[PassShape], place: Place) -> u64 {
        let _ = (passes, place);
        0
    }
    /// Kept free for a pass that is recorded.
    fn graph_bytes(&self) -> u64 {
        0
    }
    /// Working memory of operations beside their operands: enough for any of
    /// these passes, of which one runs at a time.
    fn scratch_bytes(&self, passes: &[PassShape]) -> u64;
}

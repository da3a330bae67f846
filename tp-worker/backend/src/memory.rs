//! Bytes of memory that a device takes, known before the device is opened.

use crate::{
    AttentionShape, Holds, InputLimits, KvShape, LatentShape, MatrixRole, Recurrence, StatesShape,
    WeightFormat,
};

/// A weight matrix, by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Number of outputs, or rows of a table.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Use of the matrix.
    pub role: MatrixRole,
    /// Format of the matrix on the device.
    pub format: WeightFormat,
}

/// The experts of a layer, by their sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsShape {
    /// Number of experts on this rank, with the shared ones.
    pub count: usize,
    /// Number of experts that the router scores, on all ranks.
    pub scored: usize,
    /// Number of experts that each row goes through, with the shared ones.
    pub active: usize,
    /// Gate and up of one expert.
    pub gate_up: MatrixShape,
    /// Projection behind the activation of one expert.
    pub down: MatrixShape,
}

/// Adapters beside a projection, by their sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptedShape {
    /// Number of places.
    pub places: usize,
    /// Largest rank.
    pub rank: usize,
    /// Matrix of a place before the rank.
    pub down: MatrixShape,
    /// Matrix of a place behind the rank, of the part with the most outputs.
    pub up: MatrixShape,
}

/// Matrices of the heads of a latent attention, by their sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentHeads {
    /// The heads.
    pub shape: LatentShape,
    /// Key matrix of one head.
    pub keys: MatrixShape,
    /// Value matrix of one head.
    pub values: MatrixShape,
}

/// The largest pass of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PassShape {
    /// Number of tokens.
    pub tokens: usize,
    /// Most positions of one request, in whole pages.
    pub positions: usize,
    /// Heads of this rank, each shape of the layers once.
    pub attention: Vec<AttentionShape>,
    /// Rules of this rank's recurrent layers, each shape once.
    pub recurrences: Vec<Recurrence>,
    /// Heads of this rank that attend to latents, each shape of the layers once. Their attention is
    /// among [`Self::attention`].
    pub latent: Vec<LatentHeads>,
    /// Products: number of rows of activations, and the matrix.
    pub products: Vec<(usize, MatrixShape)>,
    /// Mixtures of experts: number of rows of activations, and the experts, each size of the
    /// layers once.
    pub experts: Vec<(usize, ExpertsShape)>,
    /// Adapters beside projections: number of rows of activations, and the adapters, each size
    /// once.
    pub adapted: Vec<(usize, AdaptedShape)>,
    /// Most elements, of all ranks together, that [`crate::Exchange::gather_to_host`] brings to
    /// this rank; 0 on a rank that gets none.
    pub gathered: usize,
}

/// The place of a rank among the ranks that it exchanges data with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankLayout {
    /// Number of this rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of DP ranks that the ranks form.
    pub dp_ranks: usize,
}

impl RankLayout {
    /// Place of a rank that exchanges nothing.
    pub const ALONE: Self = Self {
        rank: 0,
        ranks: 1,
        dp_ranks: 1,
    };

    /// Returns the number of ranks of a DP rank.
    pub fn near(&self) -> usize {
        self.ranks / self.dp_ranks
    }

    /// Returns true if the rank leads a DP rank.
    pub fn leads(&self) -> bool {
        self.rank.is_multiple_of(self.near())
    }
}

/// Bytes that a backend allocates, as pure functions of its configuration.
///
/// A device's crate computes the bytes where it allocates, so that the charge before the start
/// equals the allocations after it.
pub trait DeviceMemory {
    /// Returns the bytes of a packed matrix.
    fn matrix_bytes(&self, matrix: MatrixShape) -> u64;
    /// Returns the bytes of a vector of `len` elements.
    fn vector_bytes(&self, len: usize) -> u64;
    /// Returns the bytes that the device takes for the numbers of `len` tokens, if it drafts by
    /// itself; 0 if the host drafts.
    fn draft_ids_bytes(&self, _len: usize) -> u64 {
        0
    }
    /// Returns the bytes of rotary angles of `half` pairs at each of `positions` positions.
    fn rope_bytes(&self, positions: usize, half: usize) -> u64;
    /// Returns the bytes of activations `[rows, width]`.
    fn tensor_bytes(&self, rows: usize, width: usize, holds: Holds) -> u64;
    /// Returns the bytes of room for the batches within `limits`.
    fn inputs_bytes(&self, limits: &InputLimits) -> u64;
    /// Returns the bytes of a paged cache when it is full.
    fn kv_bytes(&self, cache: &KvShape) -> u64;
    /// Returns the bytes of states and records of recurrent layers.
    fn states_bytes(&self, states: &StatesShape) -> u64 {
        states.bytes()
    }
    /// Returns true if the device may choose the tokens of passes that it runs with `ranks`
    /// ranks. One of them then has whole rows of logits.
    fn chooses(&self, ranks: usize) -> bool {
        ranks == 1
    }
    /// Returns bytes of the host's memory, beside a device that has its own. The data of a rank
    /// at `place` passes through it, in any of these passes.
    fn host_bytes(&self, passes: &[PassShape], place: RankLayout) -> u64 {
        let _ = (passes, place);
        0
    }
    /// Returns bytes of the device's own memory that carry several ranks' data from device to
    /// device: the library's communicators on a rank at `place`. The communicators are opened
    /// first.
    fn exchange_bytes(&self, place: RankLayout) -> u64 {
        let _ = place;
        0
    }
    /// Returns bytes of the device's own memory in which the logits of several ranks come
    /// together on a rank at `place`, in any of these passes.
    fn gathered_bytes(&self, passes: &[PassShape], place: RankLayout) -> u64 {
        let _ = (passes, place);
        0
    }
    /// Returns the bytes that are kept free for a recorded pass.
    fn graph_bytes(&self) -> u64 {
        0
    }
    /// Returns the bytes of working memory of operations, beside their operands. They are
    /// enough for any of these passes, one of which runs at a time.
    fn scratch_bytes(&self, passes: &[PassShape]) -> u64;
}

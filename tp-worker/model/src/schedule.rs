//! The collectives a forward pass issues, known before it runs.

use lockstep_backend::Axis;

/// The kinds of collective a forward pass uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`lockstep_backend::Backend::all_reduce`].
    AllReduce,
    /// [`lockstep_backend::Backend::gather_to_host`].
    Gather,
    /// [`lockstep_backend::Backend::all_gather_rows`].
    AllGather,
    /// [`lockstep_backend::Backend::matmul_scatter_add_rms_norm`].
    ReduceScatter,
}

/// Whose rows a collective carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedRows {
    /// Those of this rank's DP rank.
    DpRank,
    /// Those of all DP ranks, in their order.
    World,
}

/// One collective: its kind and its elements per row (of all ranks for a gather).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveStep {
    /// The operation.
    pub kind: CollectiveKind,
    /// The ranks that run it together.
    pub axis: Axis,
    /// Its rows.
    pub rows: CountedRows,
    /// Elements per row.
    pub width: usize,
}

/// All collectives of a pass, in order. Their list depends on the model and its
/// split alone; the batches of all DP ranks only say how many rows they carry and
/// how often `block` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Over every token, up to the last layer's attention.
    pub tokens: Vec<CollectiveStep>,
    /// Over the tokens whose logits are wanted; absent when no DP rank wants any.
    pub logit_tokens: Vec<CollectiveStep>,
    /// Once per block of `block_rows` wanted rows of all DP ranks.
    pub block: Vec<CollectiveStep>,
    /// Rows of a block.
    pub block_rows: usize,
}

impl Schedule {
    /// The collectives of a pass over some tokens of which `logit_rows` rows of
    /// logits are wanted, by all DP ranks together.
    pub fn steps(&self, logit_rows: usize) -> impl Iterator<Item = &CollectiveStep> {
        let blocks = logit_rows.div_ceil(self.block_rows);
        let tail = if logit_rows > 0 {
            self.logit_tokens.as_slice()
        } else {
            &[]
        };
        self.tokens
            .iter()
            .chain(tail)
            .chain(std::iter::repeat_n(&self.block, blocks).flatten())
    }
}

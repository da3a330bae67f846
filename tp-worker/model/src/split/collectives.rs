//! Collectives of a pass, before it runs.

use lockstep_backend::Axis;

/// The kinds of collectives that a forward pass uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`lockstep_backend::Exchange::all_reduce`].
    AllReduce,
    /// [`lockstep_backend::Exchange::gather_to_host`].
    Gather,
    /// [`lockstep_backend::Exchange::all_gather_rows`].
    AllGather,
    /// [`lockstep_backend::Exchange::matmul_scatter_end_block`].
    ReduceScatter,
}

/// Rows that a collective carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedRows {
    /// Rows of this rank's DP rank.
    DpRank,
    /// Rows of all DP ranks, in their order.
    World,
}

/// One collective of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveStep {
    /// Kind of the operation.
    pub kind: CollectiveKind,
    /// The ranks that run it together.
    pub axis: Axis,
    /// Rows that the collective carries.
    pub rows: CountedRows,
    /// Elements per row; for a gather, the elements of all ranks.
    pub width: usize,
}

impl CollectiveStep {
    /// Creates a sum of this DP rank's rows over the ranks of `axis`.
    pub(crate) fn sum(axis: Axis, width: usize) -> Self {
        Self {
            kind: CollectiveKind::AllReduce,
            axis,
            rows: CountedRows::DpRank,
            width,
        }
    }

    /// Creates a collective that carries the rows of all DP ranks.
    pub(crate) fn of_all(kind: CollectiveKind, axis: Axis, width: usize) -> Self {
        Self {
            kind,
            axis,
            rows: CountedRows::World,
            width,
        }
    }
}

//! Collectives of a pass, before it runs.

use lockstep_backend::Axis;

/// The kinds of collective a forward pass uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`lockstep_backend::Exchange::all_reduce`].
    AllReduce,
    /// [`lockstep_backend::Exchange::gather_to_host`].
    Gather,
    /// [`lockstep_backend::Exchange::all_gather_rows`].
    AllGather,
    /// [`lockstep_backend::Exchange::matmul_scatter_add_rms_norm`].
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

impl CollectiveStep {
    /// A sum of this DP rank's rows over the ranks of `axis`.
    pub(crate) fn sum(axis: Axis, width: usize) -> Self {
        Self {
            kind: CollectiveKind::AllReduce,
            axis,
            rows: CountedRows::DpRank,
            width,
        }
    }

    /// One that carries the rows of all DP ranks.
    pub(crate) fn of_all(kind: CollectiveKind, axis: Axis, width: usize) -> Self {
        Self {
            kind,
            axis,
            rows: CountedRows::World,
            width,
        }
    }
}

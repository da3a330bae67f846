//! The groups that collectives run in.

/// Among which ranks a collective runs, and a model is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// The tensor-parallel group: the ranks that hold one model together.
    Tensor,
    /// This rank alone: nothing waits for a peer.
    Alone,
}

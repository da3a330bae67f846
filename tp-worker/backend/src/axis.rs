//! The groups that collectives run in.

/// A group of ranks: a model is split over it, and its collectives run in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// The tensor-parallel group: the ranks that hold one model together.
    Tensor,
    /// This rank alone: nothing waits for a peer.
    Alone,
}

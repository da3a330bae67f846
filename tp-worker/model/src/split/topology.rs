//! The ranks that the parts of a model are split over.

use lockstep_backend::{Axis, Backend};

/// A rank's place in a group of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the rank in the group, from 0.
    pub rank: usize,
    /// Number of ranks in the group.
    pub size: usize,
}

impl Place {
    /// Returns true for the first rank of the group, which adds terms that must be added
    /// once.
    pub fn leads(self) -> bool {
        self.rank == 0
    }
}

/// A rank's places in the groups that a model is split over. Attention heads are split over
/// the ranks of one DP rank. MLP columns and rows of the vocabulary are split over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Place among all ranks.
    pub world: Place,
    /// Place among the ranks of the DP rank.
    pub attention: Place,
}

impl Topology {
    /// Topology of rank `rank` of `tp_size` ranks. Neighbours form the `dp_size` DP ranks.
    pub fn new(rank: usize, tp_size: usize, dp_size: usize) -> Self {
        let size = tp_size / dp_size;
        Self {
            world: Place {
                rank,
                size: tp_size,
            },
            attention: Place {
                rank: rank % size,
                size,
            },
        }
    }

    /// Topology of a rank that holds a model alone.
    pub fn alone() -> Self {
        Self::new(0, 1, 1)
    }

    /// Topology of this rank, for a model that is split over the ranks of `axis`.
    pub fn of<B: Backend>(backend: &B, axis: Axis) -> Self {
        let place = |axis| {
            let (rank, size) = backend.group(axis);
            Place { rank, size }
        };
        Self {
            world: place(axis),
            attention: place(attention_axis(axis)),
        }
    }

    /// Number of DP ranks.
    pub fn dp_size(&self) -> usize {
        self.world.size / self.attention.size.max(1)
    }

    /// The DP rank that this rank belongs to.
    pub fn dp_rank(&self) -> usize {
        self.world.rank / self.attention.size
    }
}

/// Returns the axis of the attention in a model that is split over the ranks of `axis`.
pub(crate) fn attention_axis(axis: Axis) -> Axis {
    match axis {
        Axis::World => Axis::Attention,
        Axis::Attention | Axis::Alone => axis,
    }
}

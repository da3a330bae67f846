//! Over which ranks the parts of a model are split.

use lockstep_backend::{Axis, Backend};

/// A rank's place in a group of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// The group's size.
    pub size: usize,
}

impl Place {
    /// Whether it is the first: the one that adds what must be added once.
    pub fn leads(self) -> bool {
        self.rank == 0
    }
}

/// A rank's places in the groups that a model is split over. Attention heads are
/// split over the ranks of one DP rank, MLP columns and rows of the vocabulary
/// over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Among all ranks.
    pub world: Place,
    /// Among the ranks of its DP rank.
    pub attention: Place,
}

impl Topology {
    /// Of rank `rank` of `tp_size`, which are `dp_size` DP ranks of neighbours.
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

    /// Of a rank that holds a model alone.
    pub fn alone() -> Self {
        Self::new(0, 1, 1)
    }

    /// Of this rank, for a model that is split over the ranks of `axis`.
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

    /// DP ranks.
    pub fn dp_size(&self) -> usize {
        self.world.size / self.attention.size.max(1)
    }

    /// The DP rank that this rank belongs to.
    pub fn dp_rank(&self) -> usize {
        self.world.rank / self.attention.size
    }
}

/// The ranks that attention is split over, in a model that is split over those of
/// `axis`.
pub(crate) fn attention_axis(axis: Axis) -> Axis {
    match axis {
        Axis::World => Axis::Attention,
        Axis::Attention | Axis::Alone => axis,
    }
}

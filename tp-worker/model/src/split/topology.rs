//! The ranks that the parts of a model are split over.

use std::fmt;

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
    /// Place of a rank, or of a group, that is alone.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// Returns true for the first rank of the group, which adds terms that must be added
    /// once.
    pub fn leads(self) -> bool {
        self.rank == 0
    }
}

/// A rank's places in the groups that a model is split over. Attention heads are split over
/// the ranks of one DP rank. MLP columns and rows of the vocabulary are split over all ranks.
///
/// Experts of a mixture are split by number over groups of neighbouring ranks, and the ranks of
/// one group split the columns of its experts. With one group all ranks split all experts.
/// Example: 8 experts on 4 ranks in 2 groups. Ranks 0 and 1 halve each of the experts 0 to 3, and
/// ranks 2 and 3 each of the experts 4 to 7.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Place among all ranks.
    pub world: Place,
    /// Place among the ranks of the DP rank.
    pub attention: Place,
    /// Place of the rank's group among those that split experts by number.
    pub experts: Place,
}

/// Names the groups of experts only if there are several: the keys of packed files are made of
/// this.
impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            world,
            attention,
            experts,
        } = self;
        let mut shown = f.debug_struct("Topology");
        shown.field("world", world).field("attention", attention);
        if experts.size != 1 {
            shown.field("experts", experts);
        }
        shown.finish()
    }
}

impl Topology {
    /// Topology of rank `rank` of `tp_size` ranks. Neighbours form the `dp_size` DP ranks. Experts
    /// are split inside.
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
            experts: Place::ALONE,
        }
    }

    /// Returns the topology with experts split by number over `ep_size` groups, a number that
    /// divides that of all ranks. [`crate::Shard::new`] refuses others.
    #[must_use]
    pub fn with_experts(self, ep_size: usize) -> Self {
        let each = (self.world.size / ep_size.max(1)).max(1);
        Self {
            experts: Place {
                rank: self.world.rank / each,
                size: ep_size,
            },
            ..self
        }
    }

    /// Place among the ranks that split the columns of the same experts.
    pub fn within_experts(&self) -> Place {
        let size = self.world.size / self.experts.size.max(1);
        Place {
            rank: self.world.rank % size.max(1),
            size,
        }
    }

    /// Topology of a rank that holds a model alone.
    pub fn alone() -> Self {
        Self::new(0, 1, 1)
    }

    /// Topology of this rank, for a model that is split over the ranks of `axis`, with experts
    /// split inside.
    pub fn of<B: Backend>(backend: &B, axis: Axis) -> Self {
        let place = |axis| {
            let (rank, size) = backend.group(axis);
            Place { rank, size }
        };
        Self {
            world: place(axis),
            attention: place(attention_axis(axis)),
            experts: Place::ALONE,
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

//! The groups that collectives run in.

use std::fmt;

use lockstep_collective::{Collective, CollectiveError, Single};

/// A group of ranks. A part of a model is split over the group, and the part's collectives run
/// in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// All ranks: they hold one model together.
    World,
    /// The ranks of one DP rank. They share requests, and split the attention. Without
    /// data-parallel attention these are all ranks.
    Attention,
    /// This rank alone: nothing waits for a peer.
    Alone,
}

/// The groups that one rank is in.
pub struct Groups {
    world: Box<dyn Collective>,
    /// Group of the DP rank; `None` if it is the world.
    attention: Option<Box<dyn Collective>>,
    alone: Single,
}

impl Groups {
    /// Splits the ranks of `world` into `dp_size` DP ranks of neighbours. All ranks call it
    /// together. With one DP rank no collective runs.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] unless `dp_size` divides the world: on every rank, and
    /// before any rank waits. [`CollectiveError::Join`] if a rank doesn't come.
    pub fn form(mut world: Box<dyn Collective>, dp_size: usize) -> Result<Self, CollectiveError> {
        let (rank, size) = (world.rank(), world.size());
        if dp_size == 0 || !size.is_multiple_of(dp_size) {
            return Err(CollectiveError::Argument {
                rank,
                reason: format!(
                    "{size} ranks can't be {dp_size} DP ranks of equal size; \
                     --dp-size has to divide --tp-size"
                ),
            });
        }
        let dp_rank = rank / (size / dp_size);
        let attention = match dp_size {
            1 => None,
            _ => Some(world.split(dp_rank as u32)?),
        };
        Ok(Self {
            world,
            attention,
            alone: Single::new(),
        })
    }

    /// Returns the group of `axis`.
    pub fn of(&mut self, axis: Axis) -> &mut dyn Collective {
        match axis {
            Axis::World => &mut *self.world,
            Axis::Attention => &mut **self.attention.as_mut().unwrap_or(&mut self.world),
            Axis::Alone => &mut self.alone,
        }
    }

    /// Returns this rank's number in the group of `axis`, and the group's size.
    pub fn rank_and_size(&self, axis: Axis) -> (usize, usize) {
        let group = match axis {
            Axis::World => &self.world,
            Axis::Attention => self.attention.as_ref().unwrap_or(&self.world),
            Axis::Alone => return (0, 1),
        };
        (group.rank(), group.size())
    }

    /// Returns true if more threads compute than there are cores: see
    /// [`Collective::is_crowded`].
    pub fn is_crowded(&self) -> bool {
        self.world.is_crowded()
    }
}

impl From<Box<dyn Collective>> for Groups {
    /// Makes groups with one DP rank, of all ranks.
    fn from(world: Box<dyn Collective>) -> Self {
        Self {
            world,
            attention: None,
            alone: Single::new(),
        }
    }
}

impl<C: Collective + 'static> From<Box<C>> for Groups {
    fn from(world: Box<C>) -> Self {
        Self::from(world as Box<dyn Collective>)
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |axis| self.rank_and_size(axis);
        let (world, attention) = (of(Axis::World), of(Axis::Attention));
        f.debug_struct("Groups")
            .field("world", &world)
            .field("attention", &attention)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

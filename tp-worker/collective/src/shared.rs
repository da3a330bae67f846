//! Ranks on one machine, over shared memory.

mod join;
mod member;
mod region;
mod wait;

use std::sync::Arc;

use member::Member;
use region::Region;

use crate::group::{Group, member};
use crate::patience::Patience;
use crate::{CollectiveError, Options};

/// One rank of a group whose ranks share memory, as threads or as processes.
#[derive(Debug)]
pub struct SharedMemory(Group<Member>);

member!(SharedMemory);

/// A group inside this process, rank by rank, for one thread each.
#[must_use]
pub fn local_group(size: usize) -> Vec<SharedMemory> {
    local_group_with(size, &Options::default())
}

/// [`local_group`] with settings.
#[must_use]
pub fn local_group_with(size: usize, options: &Options) -> Vec<SharedMemory> {
    let region = Arc::new(Region::allocate(size, options.max_elements.max(1)));
    let patience = Patience::new(size, options);
    let member = |rank| Member::new(region.clone(), rank, patience.clone());
    (0..size)
        .map(|rank| SharedMemory(Group::new(member(rank))))
        .collect()
}

impl SharedMemory {
    /// Joins group `name` as `rank` of `size` (1 to 64), with buffers of
    /// `max_elements` and otherwise default [`Options`].
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn create(
        name: &str,
        rank: usize,
        size: usize,
        max_elements: usize,
    ) -> Result<Self, CollectiveError> {
        Self::join(
            name,
            rank,
            size,
            &Options {
                max_elements,
                ..Options::default()
            },
        )
    }

    /// Joins group `name` as `rank` of `size` (1 to 64) and waits for the other
    /// ranks. The group meets in a file `/dev/shm/name`, mode 0600, that the
    /// first rank creates and the last one removes; every group needs a name
    /// of its own.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] when rank, size, name or settings don't fit
    /// those of the group or a rank doesn't come; [`CollectiveError::System`].
    pub fn join(
        name: &str,
        rank: usize,
        size: usize,
        options: &Options,
    ) -> Result<Self, CollectiveError> {
        if size == 0 || size > join::MAX_RANKS || rank >= size {
            let reason = format!(
                "rank {rank} of {size}; there may be 1 to {}",
                join::MAX_RANKS
            );
            return Err(CollectiveError::join(rank, reason));
        }
        let options = &Options {
            max_elements: options.max_elements.max(1),
            ..options.clone()
        };
        let region = Arc::new(join::join(name, rank, size, options)?);
        Ok(Self(Group::new(Member::new(
            region,
            rank,
            Patience::new(size, options),
        ))))
    }
}

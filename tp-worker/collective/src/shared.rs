//! Collectives over shared memory, for ranks on one machine.

mod cross_group;
mod home;
mod join;
mod member;
mod region;
mod seats;
mod wait;

use std::sync::Arc;

use home::{Home, Offers};
use member::Member;
use region::Region;
use seats::Seats;

use crate::group::Group;
use crate::membership::Membership;
use crate::patience::Patience;
use crate::{CollectiveError, Options};

/// A rank of a group over shared memory. Its ranks are threads or processes.
pub type SharedMemory = Group<Member>;

/// Makes a group inside this process. Returns its ranks in order, one for each thread.
#[must_use]
pub fn local_group(size: usize) -> Vec<SharedMemory> {
    local_group_with(size, &Options::default())
}

/// Makes a group as [`local_group`] does, with settings.
#[must_use]
pub fn local_group_with(size: usize, options: &Options) -> Vec<SharedMemory> {
    let options = at_least_one(options);
    let region = Arc::new(Region::allocate(size, options.max_elements));
    let home = Home::Process(Arc::new(Offers::default()));
    (0..size)
        .map(|rank| first_group(region.clone(), rank, home.clone(), &options))
        .collect()
}

impl SharedMemory {
    /// Joins group `name` as `rank` of `size` (1 to 64), with buffers of `max_elements` and
    /// otherwise default [`Options`].
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if rank, size or name don't fit those of the group, or if a
    /// rank doesn't come; [`CollectiveError::System`].
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

    /// Joins group `name` as `rank` of `size` (1 to 64) and waits for the other ranks. The
    /// group meets in a file `/dev/shm/name`, mode 0600. The first rank creates it and the last
    /// one removes it, so every group needs a name of its own. Groups that are split off meet
    /// in files whose names begin with this name.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if rank, size, name or settings don't fit those of the group,
    /// or if a rank doesn't come; [`CollectiveError::System`].
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
        let options = at_least_one(options);
        let region = Arc::new(join::join(name, rank, size, &options)?);
        let home = Home::Files(name.to_owned());
        Ok(first_group(region, rank, home, &options))
    }
}

fn first_group(region: Arc<Region>, rank: usize, home: Home, options: &Options) -> SharedMemory {
    let names = (0..region.ranks()).collect();
    let seats = Arc::new(Seats::default());
    let patience = Patience::new(region.ranks(), options);
    let membership = Membership::new(rank, seats.clone());
    let member = Member::new(region, rank, names, patience, seats, home, options);
    Group::new(member, membership)
}

/// Returns the options with buffers of at least one element.
fn at_least_one(options: &Options) -> Options {
    Options {
        max_elements: options.max_elements.max(1),
        ..options.clone()
    }
}

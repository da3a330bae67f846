//! The places that one rank has in the regions of its groups.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::region::Region;
use super::wait::{ABORTED, LEFT, PRESENT, wake};
use crate::membership::Presence;

/// A region and this rank's number there, for every group of one rank.
///
/// Regions stay mapped as long as the rank takes part in any group: a peer that
/// waits in one of them has to see that this rank left.
#[derive(Default)]
pub(crate) struct Seats(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    seats: Vec<(Arc<Region>, usize)>,
    /// [`PRESENT`], [`LEFT`] or [`ABORTED`]: of the rank in all of them.
    state: u32,
}

impl Seats {
    /// Takes the place of `rank` in `region`, in the state of the others.
    pub fn take(&self, region: Arc<Region>, rank: usize) {
        let mut taken = self.lock();
        announce(&region, rank, taken.state);
        taken.seats.push((region, rank));
    }

    fn end(&self, state: u32) {
        let mut taken = self.lock();
        // An abort is the stronger word: this rank's own calls look for it.
        taken.state = taken.state.max(state);
        for (region, rank) in &taken.seats {
            announce(region, *rank, taken.state);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Presence for Seats {
    fn abort(&self) {
        self.end(ABORTED);
    }

    fn leave(&self) {
        self.end(LEFT);
    }

    fn is_aborted(&self) -> bool {
        self.lock().state == ABORTED
    }
}

/// Shows the peers, and this rank's own waits, what became of `rank`.
fn announce(region: &Region, rank: usize, state: u32) {
    const { assert!(PRESENT < LEFT && LEFT < ABORTED) };
    region.control(rank).state.store(state, Ordering::Release);
    if state != PRESENT {
        (0..region.ranks()).for_each(|rank| wake(&region.control(rank).arrived));
    }
}

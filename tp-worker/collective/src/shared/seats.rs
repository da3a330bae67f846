//! The places that one rank has in the regions of its groups.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::region::Region;
use super::wait::{ABORTED, LEFT, PRESENT, wake};
use crate::membership::{Presence, Shown};

/// One rank's place in the region of one of its groups.
pub(crate) struct Seat {
    pub region: Arc<Region>,
    /// The rank's number there.
    pub rank: usize,
    /// Every rank's number in the first group.
    pub names: Arc<[usize]>,
}

/// A seat for every group of one rank.
///
/// Regions stay mapped as long as the rank takes part in any group: a peer may wait in one of
/// them, and has to see that this rank left.
#[derive(Default)]
pub(crate) struct Seats(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    seats: Vec<Seat>,
    /// State of the rank in all seats: [`PRESENT`], [`LEFT`] or [`ABORTED`].
    state: u32,
}

impl Seats {
    /// Takes another seat, in the state of the others.
    pub fn take(&self, seat: Seat) {
        let mut taken = self.lock();
        announce(&seat, taken.state);
        taken.seats.push(seat);
    }

    /// Returns the first result of `look` over the seats.
    pub fn find<T>(&self, look: impl FnMut(&Seat) -> Option<T>) -> Option<T> {
        self.lock().seats.iter().find_map(look)
    }

    fn end(&self, state: u32) {
        let mut taken = self.lock();
        // An abort overrides leaving: this rank's own calls look for it.
        taken.state = taken.state.max(state);
        for seat in &taken.seats {
            announce(seat, taken.state);
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

    fn departed(&self) -> Option<usize> {
        self.find(
            |Seat {
                 region,
                 rank,
                 names,
             }| {
                let gone = |peer: &usize| {
                    let state = &region.control(*peer).state;
                    *peer != *rank && state.load(Ordering::Acquire) != PRESENT
                };
                (0..region.ranks()).find(gone).map(|peer| names[peer])
            },
        )
    }

    fn show(&self, words: &Shown) {
        let show = |seat: &Seat| {
            let slots = &seat.region.control(seat.rank).shown.0;
            for (slot, word) in slots.iter().zip(words) {
                slot.store(*word, Ordering::Relaxed);
            }
            Some(())
        };
        // The first seat is in the first group.
        self.find(show);
    }

    fn shown(&self, peer: usize) -> Option<Shown> {
        self.find(|seat| {
            let rank = seat.names.iter().position(|name| *name == peer)?;
            let slots = &seat.region.control(rank).shown.0;
            Some(std::array::from_fn(|at| slots[at].load(Ordering::Relaxed)))
        })
    }
}

/// Shows the rank's state to the peers and to this rank's own waits.
fn announce(Seat { region, rank, .. }: &Seat, state: u32) {
    const { assert!(PRESENT < LEFT && LEFT < ABORTED) };
    region.control(*rank).state.store(state, Ordering::Release);
    if state != PRESENT {
        (0..region.ranks()).for_each(|rank| wake(&region.control(rank).arrived));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank may be aborted while a group of it forms. It then waits for no rank there, and no
    /// rank for it.
    #[test]
    fn a_seat_that_is_taken_late_is_in_the_state_of_the_others() {
        let seats = Seats::default();
        let regions = [(); 3].map(|()| Arc::new(Region::allocate(2, 1)));
        let take = |region: &Arc<Region>| {
            seats.take(Seat {
                region: region.clone(),
                rank: 1,
                names: [4, 7].into(),
            });
        };
        let states = || {
            let state = |region: &Arc<Region>| region.control(1).state.load(Ordering::Relaxed);
            regions.each_ref().map(state)
        };
        take(&regions[0]);
        assert_eq!(states(), [PRESENT; 3]);
        seats.leave();
        take(&regions[1]);
        assert_eq!(states(), [LEFT, LEFT, PRESENT]);
        assert!(!seats.is_aborted(), "it has only left");
        seats.abort();
        take(&regions[2]);
        assert_eq!(states(), [ABORTED; 3]);
        seats.leave();
        assert!(seats.is_aborted());
        assert_eq!(states(), [ABORTED; 3]);
    }
}

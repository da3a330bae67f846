//! Memory that a communicator takes of its device, like NCCL's: a little when it is made, and
//! rooms for each channel and peer at the first operation between them. All of it is freed at
//! the communicator's end.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::UNHANDLED;
use crate::abi::{Answer, Refusal};
use crate::settings;
use crate::world::lock;

/// State of a communicator, and the room where arguments of its kernels wait.
const STATE: usize = 4 << 20;
/// A channel's room to receive from a peer: rooms of three protocols, of 4 MiB, 4.7 MiB and
/// half a MiB, in whole units.
const RECEIVES: usize = 10 << 20;
/// A channel's room to send to a peer.
const SENDS: usize = 2 << 20;
/// Room for sums that the switch between the devices adds up, by channel and rank.
const SWITCHED: usize = 2 << 20;
/// Peers of a rank in a channel's ring and chain.
const NEIGHBOURS: usize = 3;
/// Largest number of channels that the machine is found to have.
const FOUND: usize = 32;

/// Memory of one rank's communicator.
pub(super) struct Taken {
    device: i32,
    ranks: usize,
    channels: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// True once the collectives have their rooms.
    collectives: bool,
    /// Ranks that letters go to, and ranks that they come from.
    letters: BTreeSet<(bool, usize)>,
    /// True once the memory was freed.
    ended: bool,
}

impl Taken {
    /// Memory of a communicator of `ranks` ranks. `least` and `most` are the numbers of
    /// channels in its configuration, where given.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(super) fn new(
        device: i32,
        ranks: usize,
        [least, most]: [Option<usize>; 2],
    ) -> Answer<Self> {
        // The environment's numbers come first.
        let least = settings::found("NCCL_MIN_CTAS").or(least).unwrap_or(1);
        let most = settings::found("NCCL_MAX_CTAS").or(most).unwrap_or(FOUND);
        let taken = Self {
            device,
            ranks,
            channels: FOUND.min(most).max(least).next_power_of_two(),
            state: Mutex::default(),
        };
        taken.take(&mut taken.state(), STATE)?;
        Ok(taken)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the rooms of collectives, if they are not there yet.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(super) fn collective(&self) -> Answer {
        let mut state = self.state();
        if self.ranks == 1 || std::mem::replace(&mut state.collectives, true) {
            return Ok(());
        }
        let neighbours = NEIGHBOURS.min(self.ranks - 1);
        let each = neighbours * (RECEIVES + SENDS) + self.ranks * SWITCHED;
        self.take(&mut state, self.channels * each)
    }

    /// Takes the room of a letter to a rank, or from it, if it is not there yet.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(super) fn letter(&self, sends: bool, peer: usize) -> Answer {
        let mut state = self.state();
        if !state.letters.insert((sends, peer)) {
            return Ok(());
        }
        let each = if sends { SENDS } else { RECEIVES };
        self.take(&mut state, self.channels * each)
    }

    fn take(&self, state: &mut State, bytes: usize) -> Answer {
        if state.ended {
            return Ok(());
        }
        let taken = lock().memory.charge(self.device, bytes);
        taken.map_err(|_| Refusal::new(UNHANDLED, "the device has no memory for a connection"))?;
        state.bytes += bytes;
        Ok(())
    }

    /// Frees the memory as the communicator ends.
    pub(super) fn give_back(&self) {
        let mut state = self.state();
        state.ended = true;
        let bytes = std::mem::take(&mut state.bytes);
        lock().memory.discharge(self.device, bytes);
    }
}

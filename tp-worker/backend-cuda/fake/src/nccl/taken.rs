//! What a communicator takes of its device, as NCCL's do: little when it is made, and
//! rooms for each channel and peer when something first goes that way. All of it is given
//! back at its end.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::UNHANDLED;
use crate::abi::{Answer, Refusal};
use crate::settings;
use crate::world::lock;

/// Of a communicator: its state, and what its kernels' arguments wait in.
const STATE: usize = 4 << 20;
/// Where a rank receives from another one by a channel: rooms of three protocols, of
/// 4 MiB, 4.7 MiB and half a MiB, in whole units.
const RECEIVES: usize = 10 << 20;
/// Where it sends to another one.
const SENDS: usize = 2 << 20;
/// Of sums that the switch between the devices adds up, by channel and rank.
const SWITCHED: usize = 2 << 20;
/// Ranks beside one in a channel's ring and chain.
const NEIGHBOURS: usize = 3;
/// Channels that the machine is found to have, at the most.
const FOUND: usize = 32;

/// The memory of one rank's communicator.
pub(super) struct Taken {
    device: i32,
    ranks: usize,
    channels: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    /// Its collectives have their rooms.
    collectives: bool,
    /// Ranks that letters go to, and come from.
    letters: BTreeSet<(bool, usize)>,
    /// It was given back.
    ended: bool,
}

impl Taken {
    /// Of a communicator of so many ranks, whose configuration says at least and at most so
    /// many channels where it does.
    ///
    /// # Errors
    /// The device has no more.
    pub(super) fn new(
        device: i32,
        ranks: usize,
        [least, most]: [Option<usize>; 2],
    ) -> Answer<Self> {
        // What the environment says comes first.
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

    /// A collective is asked for.
    ///
    /// # Errors
    /// The device has no more.
    pub(super) fn collective(&self) -> Answer {
        let mut state = self.state();
        if self.ranks == 1 || std::mem::replace(&mut state.collectives, true) {
            return Ok(());
        }
        let neighbours = NEIGHBOURS.min(self.ranks - 1);
        let each = neighbours * (RECEIVES + SENDS) + self.ranks * SWITCHED;
        self.take(&mut state, self.channels * each)
    }

    /// A letter to a rank, or from it, is asked for.
    ///
    /// # Errors
    /// The device has no more.
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

    /// The communicator ends.
    pub(super) fn give_back(&self) {
        let mut state = self.state();
        state.ended = true;
        let bytes = std::mem::take(&mut state.bytes);
        lock().memory.discharge(self.device, bytes);
    }
}

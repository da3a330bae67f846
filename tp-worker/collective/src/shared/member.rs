//! One rank's end of a shared region: publish, wait, read.
//!
//! Operations consist of *phases*, counted alike by every rank. In phase `p` a rank writes its
//! buffer `p % 2`, publishes `p`, and waits until every peer has published `p`. From then on it
//! may read the peers' buffers `p % 2`.
//!
//! A buffer is never written while another rank reads it. A rank writes for phase `p` only
//! after it has waited for phase `p - 1`. A peer publishes `p - 1` only after it has finished
//! its reads of phase `p - 2`, the last one that used the same buffer. Publishing is a release
//! and waiting an acquire, so written data and finished reads are visible in that order.
#![expect(unsafe_code, reason = "reads and writes the ranks' buffers")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cross_group;
use super::home::Home;
use super::region::Region;
use super::seats::{Seat, Seats};
use super::wait::{ABORTED, PRESENT, reached, sleep, wake};
use crate::attachment::{Attachment, Shape};
use crate::endpoint::Endpoint;
use crate::patience::Patience;
use crate::{CollectiveError, Operation, Options};

/// A rank's end of the region. `&mut self` separates writing and publishing from reading, so
/// borrows of buffers end before the next phase starts.
pub struct Member {
    region: Arc<Region>,
    rank: usize,
    /// Every rank's number in the first group.
    names: Arc<[usize]>,
    patience: Patience,
    /// The last phase that this rank has published and every peer has reached.
    phase: u32,
    /// True if a phase was published that not every peer reached. Buffers may then be in use on
    /// either side for ever.
    broken: bool,
    seats: Arc<Seats>,
    home: Home,
    options: Options,
}

impl Member {
    /// Makes rank `rank` of the region. Its number in the first group is `names[rank]`; `seats`
    /// are the seats of all groups that the rank is in.
    pub(crate) fn new(
        region: Arc<Region>,
        rank: usize,
        names: Arc<[usize]>,
        patience: Patience,
        seats: Arc<Seats>,
        home: Home,
        options: &Options,
    ) -> Self {
        assert!(rank < region.ranks(), "rank {rank} of {}", region.ranks());
        seats.take(Seat {
            region: region.clone(),
            rank,
            names: names.clone(),
        });
        Self {
            region,
            rank,
            names,
            patience,
            phase: 0,
            broken: false,
            seats,
            home,
            options: options.clone(),
        }
    }

    fn wait(
        &self,
        peer: usize,
        phase: u32,
        operation: Operation,
        start: &mut Option<Instant>,
    ) -> Result<(), CollectiveError> {
        let control = self.region.control(peer);
        let own = &self.region.control(self.rank).state;
        if reached(&control.arrived, phase) {
            return Ok(());
        }
        let start = *start.get_or_insert_with(Instant::now);
        self.patience
            .spin
            .until(|| reached(&control.arrived, phase) || own.load(Ordering::Relaxed) != PRESENT);
        while !reached(&control.arrived, phase) {
            let goes_on = self.check_all(phase, operation);
            goes_on.map_err(|error| error.waiting_for(self.names[peer]))?;
            let waited = start.elapsed();
            let left = self.patience.timeout.saturating_sub(waited);
            if left.is_zero() {
                return Err(CollectiveError::Timeout {
                    rank: self.names[self.rank],
                    missing: self.names[peer],
                    operation,
                    waited,
                });
            }
            self.sleep(peer, phase, left)?;
        }
        Ok(())
    }

    fn sleep(&self, peer: usize, phase: u32, limit: Duration) -> Result<(), CollectiveError> {
        let control = self.region.control(peer);
        control.waiters.0.fetch_add(1, Ordering::SeqCst);
        let seen = control.arrived.load(Ordering::SeqCst);
        let asleep = if seen.wrapping_sub(phase) as i32 >= 0 {
            Ok(())
        } else {
            sleep(&control.arrived, seen, limit)
        };
        control.waiters.0.fetch_sub(1, Ordering::SeqCst);
        let name = self.names[self.rank];
        asleep.map_err(|error| CollectiveError::system(name, "futex wait", &error))
    }

    /// Fails if this rank was aborted, if a peer keeps another order of groups, or if a peer
    /// left before `phase`.
    fn check_all(&self, phase: u32, operation: Operation) -> Result<(), CollectiveError> {
        self.check_state(self.rank, operation)?;
        let left = (0..self.size()).find_map(|peer| {
            let left = self.check_state(peer, operation).err()?;
            // The state is looked at first: a peer that left after arriving is no loss.
            (!reached(&self.region.control(peer).arrived, phase)).then_some(left)
        });
        // Also looked at if a peer left, and after that was seen: it may be why the peer left.
        match cross_group::find(&self.seats, &self.region, &self.names, phase) {
            Some((peer, theirs)) => Err(self.mismatch(operation, peer, theirs)),
            None => left.map_or(Ok(()), Err),
        }
    }

    fn check_state(&self, rank: usize, operation: Operation) -> Result<(), CollectiveError> {
        match self.region.control(rank).state.load(Ordering::Acquire) {
            PRESENT => Ok(()),
            ABORTED if rank == self.rank => Err(CollectiveError::Aborted {
                rank: self.names[rank],
                missing: None,
            }),
            _ => Err(CollectiveError::PeerLeft {
                rank: self.names[self.rank],
                peer: self.names[rank],
                operation,
            }),
        }
    }

    /// Writes the words that peers compare before they read this rank's buffer.
    fn describe(&self, operation: Operation, attachment: &Attachment, parity: usize) {
        let own = self.region.control(self.rank);
        for (slot, word) in own.operations[parity].iter().zip(operation.to_words()) {
            slot.store(word, Ordering::Relaxed);
        }
        let shape = attachment.shape().to_word();
        own.shapes[parity].store(shape, Ordering::Relaxed);
        let slots = &own.attached[parity].0;
        for (slot, word) in slots.iter().zip(attachment.words()) {
            slot.store(*word, Ordering::Relaxed);
        }
    }

    /// Returns the words that `peer` described for phases of this parity.
    fn described(&self, peer: usize, parity: usize) -> Attachment {
        let control = self.region.control(peer);
        let shape = Shape::from_word(control.shapes[parity].load(Ordering::Relaxed));
        let words = &control.attached[parity].0;
        Attachment::new(shape, |word| words[word].load(Ordering::Relaxed))
    }

    fn mismatch(&self, ours: Operation, peer: usize, theirs: Operation) -> CollectiveError {
        CollectiveError::Mismatch {
            rank: self.names[self.rank],
            ours,
            peer,
            theirs,
        }
    }

    fn compare(
        &self,
        ours: Operation,
        attachment: &Attachment,
        parity: usize,
    ) -> Result<(), CollectiveError> {
        let shape = attachment.shape().to_word();
        for peer in 0..self.size() {
            let control = self.region.control(peer);
            let theirs = control.operation(parity);
            // Most transfers carry no words: they cost no more than this look.
            let attached = shape | control.shapes[parity].load(Ordering::Relaxed) != 0;
            if theirs == ours && !attached {
                continue;
            }
            let words = self.described(peer, parity);
            let (rank, peer) = (self.names[self.rank], self.names[peer]);
            // Words tell why ranks that differ run different operations.
            let tell = match theirs == ours {
                true => !attachment.agrees(&words),
                false => attachment.differs(&words),
            };
            if tell {
                let (own, theirs) = ((rank, attachment), (peer, &words));
                return Err(CollectiveError::attached(ours, own, theirs));
            }
            if theirs != ours {
                return Err(self.mismatch(ours, peer, theirs));
            }
        }
        Ok(())
    }
}

impl Endpoint for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.region.ranks()
    }

    fn name(&self, rank: usize) -> usize {
        self.names[rank]
    }

    /// Returns the number of elements that a phase can carry per rank.
    fn capacity(&self) -> usize {
        self.region.capacity()
    }

    fn is_crowded(&self) -> bool {
        self.patience.crowded
    }

    /// Returns this rank's buffer for the next phase.
    fn outgoing(&mut self) -> &mut [f32] {
        assert!(!self.broken, "no phase can follow one that failed");
        let parity = self.phase.wrapping_add(1) as usize % 2;
        let buffer = self.region.buffer(self.rank, parity);
        // SAFETY: the buffer has `capacity` elements, any bits are a valid
        // f32. Nobody reads it: peers read this parity again only once this
        // rank publishes the next phase, which needs `&mut self`, and have
        // finished with the phase before (see the module's text).
        unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), self.region.capacity()) }
    }

    /// Returns the elements that `rank` published in the last phase of [`Self::transfer`].
    fn incoming(&self, rank: usize) -> &[f32] {
        assert!(!self.broken, "a phase that failed leaves nothing to read");
        let buffer = self.region.buffer(rank, self.phase as usize % 2);
        // SAFETY: `transfer` has seen that `rank` reached `phase`, and `rank`
        // writes this buffer again only after this rank publishes the next
        // phase, which needs `&mut self`. Before the first phase the buffer is
        // zero and nobody writes buffer 0 until all ranks have reached phase 1.
        unsafe { std::slice::from_raw_parts(buffer.as_ptr(), self.region.capacity()) }
    }

    fn attachment(&self, rank: usize) -> Attachment {
        self.described(rank, self.phase as usize % 2)
    }

    /// Publishes the outgoing buffer under the name of `operation`, and waits until every peer
    /// has done the same.
    fn transfer(
        &mut self,
        operation: Operation,
        attachment: &Attachment,
        _part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError> {
        self.check_state(self.rank, operation)?;
        self.broken = true;
        let phase = self.phase.wrapping_add(1);
        let own = self.region.control(self.rank);
        let parity = phase as usize % 2;
        self.describe(operation, attachment, parity);
        // Sequentially consistent, together with the sleeper's increment of `waiters` and its
        // next look at `arrived`: one of the two sees the other.
        own.arrived.store(phase, Ordering::SeqCst);
        if own.waiters.0.load(Ordering::SeqCst) > 0 {
            wake(&own.arrived);
        }
        let mut start = None;
        for peer in (0..self.size()).filter(|&peer| peer != self.rank) {
            self.wait(peer, phase, operation, &mut start)?;
        }
        self.compare(operation, attachment, parity)?;
        self.phase = phase;
        self.broken = false;
        Ok(())
    }

    fn split(&self, ranks: &[usize], id: u64) -> Result<Self, CollectiveError> {
        let own = ranks.iter().take_while(|&&rank| rank != self.rank);
        let rank = own.count();
        Ok(Self::new(
            self.home.region(id, rank, ranks.len(), &self.options)?,
            rank,
            ranks.iter().map(|&rank| self.names[rank]).collect(),
            self.patience.clone(),
            self.seats.clone(),
            self.home.clone(),
            &self.options,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::Kind;
    use crate::membership::Presence as _;

    /// An abort ends a wait, and the error names the peer that was missing.
    #[test]
    fn a_wait_that_is_aborted_names_who_was_missing() {
        let region = Arc::new(Region::allocate(2, 1));
        let (names, options) = ([5, 9].into(), Options::default());
        let (seats, patience) = (Arc::new(Seats::default()), Patience::new(2, &options));
        let home = Home::Process(Arc::default());
        let own = region.clone();
        let mut member = Member::new(own, 0, names, patience, seats.clone(), home, &options);
        let operation = Operation {
            group: 0,
            sequence: 0,
            kind: Kind::Barrier,
            length: 0,
            detail: 0,
        };
        let waiter =
            thread::spawn(move || member.transfer(operation, &Attachment::NONE, &|_, _| 0..0));
        while !reached(&region.control(0).arrived, 1) {
            thread::yield_now();
        }
        seats.abort();
        let error = waiter.join().expect("no panic").expect_err("nobody came");
        let expected = CollectiveError::Aborted {
            rank: 5,
            missing: Some(9),
        };
        assert_eq!(error, expected);
    }
}

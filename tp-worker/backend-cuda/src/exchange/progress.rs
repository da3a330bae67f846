//! Progress of ranks in their exchanges from device to device, as far as they see each other. A
//! rank that waits too long finds the rank that it waits for.

use lockstep_backend::{Axis, Exchanged};
use lockstep_collective::{Shown, Stall};

/// Number of collectives whose digests a rank remembers, to compare with peers that are behind.
const REMEMBERED: usize = 1024;

/// Collectives that a rank has begun, as its peers see them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Collectives with all ranks, and collectives within the DP rank.
    begun: [Begun; 2],
    /// The peer that made the rank give up, if it has.
    blames: Option<usize>,
    /// Signs of life: grows as long as the rank's process runs.
    beats: u64,
}

/// Collectives of one axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Begun {
    count: u64,
    /// FNV-1a over the words of all collectives.
    digest: u64,
    last: [u64; 2],
}

/// A rank's own progress, with its history.
pub(crate) struct Track {
    shown: Progress,
    /// Digests after each of the last collectives, by the collective's number.
    digests: [Vec<u64>; 2],
}

/// A peer whose progress can be seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// The peer's rank.
    pub(crate) rank: usize,
    /// True if the peer is of the same DP rank.
    pub(crate) near: bool,
    /// The peer's progress.
    pub(crate) shown: Progress,
}

impl Track {
    /// Makes a track without collectives.
    pub(crate) fn new() -> Self {
        Self {
            shown: Progress::default(),
            digests: [(); 2].map(|()| vec![0; REMEMBERED]),
        }
    }

    /// Progress for peers to see.
    pub(crate) fn shown(&self) -> Progress {
        self.shown
    }

    /// Notes that another collective is begun.
    pub(crate) fn begin(&mut self, exchanged: &Exchanged) {
        let axis = usize::from(exchanged.axis != Axis::World);
        let [a, b, c, d] = exchanged.to_words().map(u64::from);
        let begun = &mut self.shown.begun[axis];
        begun.count += 1;
        begun.last = [a | b << 32, c | d << 32];
        for word in begun.last {
            let mixed = (begun.digest ^ word).wrapping_mul(0x0100_0000_01b3);
            begun.digest = mixed.rotate_left(23);
        }
        self.digests[axis][begun.count as usize % REMEMBERED] = begun.digest;
    }

    /// Adds a sign of life.
    pub(crate) fn beat(&mut self) {
        self.shown.beats += 1;
    }

    /// Notes that this rank gives up because of `peer`.
    pub(crate) fn blame(&mut self, peer: usize) {
        self.shown.blames = Some(peer);
    }

    /// The reason why this rank lacks its peers' data: a peer that has begun another
    /// collective, or else the peer that is furthest behind, or else a peer that is ahead.
    pub(crate) fn stall(&self, peers: &[Peer]) -> Stall {
        // Other DP ranks have groups of their own.
        let pairs = || {
            let of = |peer: &Peer| [Some((0, *peer)), peer.near.then_some((1, *peer))];
            peers.iter().flat_map(of).flatten()
        };
        let own = |axis: usize| self.shown.begun[axis];
        let diverged = pairs().find(|(axis, peer)| self.is_other(*axis, &peer.shown.begun[*axis]));
        if let Some((axis, peer)) = diverged {
            return diverges(own(axis), peer.rank, peer.shown.begun[axis]);
        }
        let behind = pairs().filter(|(axis, peer)| {
            let theirs = peer.shown.begun[*axis];
            theirs.count < own(*axis).count
        });
        if let Some((axis, peer)) = behind.min_by_key(|(axis, peer)| peer.shown.begun[*axis].count)
        {
            return Stall::Missing {
                peer: peer.rank,
                theirs: peer.shown.begun[axis].count,
                ours: own(axis).count,
                last: own(axis).described(),
            };
        }
        let ahead = pairs().find(|(axis, peer)| peer.shown.begun[*axis].count > own(*axis).count);
        ahead.map_or(Stall::Unknown, |(axis, peer)| {
            diverges(own(axis), peer.rank, peer.shown.begun[axis])
        })
    }

    /// Returns true if a peer that is no further than this rank has begun other collectives
    /// than this rank had then. Older collectives than are remembered count as equal.
    fn is_other(&self, axis: usize, theirs: &Begun) -> bool {
        let own = self.shown.begun[axis].count;
        let remembered = theirs.count <= own && own - theirs.count < REMEMBERED as u64;
        let digest = self.digests[axis][theirs.count as usize % REMEMBERED];
        remembered && theirs.count > 0 && digest != theirs.digest
    }
}

impl Progress {
    /// See [`Track::blame`].
    pub(crate) fn blames(&self) -> Option<usize> {
        self.blames
    }

    /// Signs of life so far.
    pub(crate) fn beats(&self) -> u64 {
        self.beats
    }

    /// Encodes the progress in words.
    pub(crate) fn to_words(self) -> Shown {
        let mut words = [0; 10];
        for (begun, words) in self.begun.iter().zip(words.chunks_mut(4)) {
            let [first, second] = begun.last;
            words.copy_from_slice(&[begun.count, begun.digest, first, second]);
        }
        words[8] = self.blames.map_or(0, |peer| peer as u64 + 1);
        words[9] = self.beats;
        words
    }

    /// The inverse of [`Self::to_words`].
    pub(crate) fn from_words(words: &Shown) -> Self {
        let begun = |at: usize| Begun {
            count: words[at],
            digest: words[at + 1],
            last: [words[at + 2], words[at + 3]],
        };
        Self {
            begun: [begun(0), begun(4)],
            blames: words[8].checked_sub(1).map(|peer| peer as usize),
            beats: words[9],
        }
    }
}

fn diverges(own: Begun, peer: usize, theirs: Begun) -> Stall {
    Stall::Diverged {
        peer,
        ours: own.count,
        last: own.described(),
        theirs: theirs.count,
        their_last: theirs.described(),
    }
}

impl Begun {
    /// Description of the last collective.
    fn described(&self) -> String {
        let [first, second] = self.last;
        let halves = [first, first >> 32, second, second >> 32].map(|word| word as u32);
        let last = Exchanged::from_words(&halves);
        last.map_or_else(|| "none".to_owned(), |last| last.to_string())
    }
}

#[cfg(test)]
mod tests;

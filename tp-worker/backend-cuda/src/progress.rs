//! How far ranks have come with what they exchange from device to device, where they
//! can see it of each other: who waits too long finds whom it waits for.

use lockstep_backend::{Axis, Exchanged};
use lockstep_collective::{Shown, Stall};

/// What one rank has begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Its collectives with all ranks, and with those of its DP rank.
    begun: [Begun; 2],
    /// Its host waits for the device.
    waits: bool,
    /// The peer for whose sake it has given up.
    blames: Option<usize>,
}

/// Collectives of one axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Begun {
    count: u64,
    /// FNV-1a over all of them.
    digest: u64,
    last: [u64; 2],
}

impl Progress {
    /// Another collective is begun.
    pub(crate) fn begin(&mut self, exchanged: &Exchanged) {
        let [a, b, c, d] = exchanged.to_words().map(u64::from);
        let begun = &mut self.begun[usize::from(exchanged.axis != Axis::World)];
        begun.count += 1;
        begun.last = [a | b << 32, c | d << 32];
        for word in begun.last {
            let mixed = (begun.digest ^ word).wrapping_mul(0x0100_0000_01b3);
            begun.digest = mixed.rotate_left(23);
        }
    }

    /// Whether the host waits from now on.
    pub(crate) fn wait(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// It gives up, for the sake of `peer`.
    pub(crate) fn blame(&mut self, peer: usize) {
        self.blames = Some(peer);
    }

    /// See [`Self::blame`].
    pub(crate) fn blames(&self) -> Option<usize> {
        self.blames
    }

    /// The encoding.
    pub(crate) fn to_words(self) -> Shown {
        let mut words = [0; 9];
        for (begun, words) in self.begun.iter().zip(words.chunks_mut(4)) {
            let [first, second] = begun.last;
            words.copy_from_slice(&[begun.count, begun.digest, first, second]);
        }
        let blames = self.blames.map_or(0, |peer| peer as u64 + 1);
        words[8] = u64::from(self.waits) | blames << 1;
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
            waits: words[8] & 1 != 0,
            blames: (words[8] >> 1).checked_sub(1).map(|peer| peer as usize),
        }
    }

    /// What keeps this rank from its peers' data: somebody who has begun less and does
    /// not wait, or else somebody who has begun something else. `peers` are all others
    /// that can be seen, and whether they are of its DP rank.
    pub(crate) fn stall(&self, peers: &[(usize, bool, Self)]) -> Stall {
        let pairs = || {
            peers.iter().flat_map(|(peer, near, theirs)| {
                let axes = self.begun.iter().zip(&theirs.begun).enumerate();
                // Other DP ranks have groups of their own.
                let shared = axes.filter(|(axis, _)| *axis == 0 || *near);
                shared.map(|(_, (own, other))| (*peer, *own, *other, theirs.waits))
            })
        };
        let missing = pairs().filter(|(_, own, other, waits)| other.count < own.count && !waits);
        if let Some((peer, own, other, _)) = missing.min_by_key(|(_, _, other, _)| other.count) {
            return Stall::Missing {
                peer,
                theirs: other.count,
                ours: own.count,
                last: own.described(),
            };
        }
        let other = pairs().find(|(_, own, other, _)| own.digest != other.digest);
        other.map_or(Stall::Unknown, |(peer, own, other, _)| Stall::Diverged {
            peer,
            ours: own.count,
            last: own.described(),
            theirs: other.count,
            their_last: other.described(),
        })
    }
}

impl Begun {
    /// The last one in words.
    fn described(&self) -> String {
        let [first, second] = self.last;
        let halves = [first, first >> 32, second, second >> 32].map(|word| word as u32);
        let last = Exchanged::from_words(&halves);
        last.map_or_else(|| "none".to_owned(), |last| last.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rank has come to that summed so many floats, one sum after the other.
    fn of(axis: Axis, sums: &[usize], waits: bool) -> Progress {
        let mut progress = Progress::default();
        let all = sums.iter().filter_map(|len| Exchanged::sum(axis, *len));
        all.for_each(|one| progress.begin(&one));
        progress.wait(waits);
        let mut given_up = progress;
        given_up.blame(3);
        assert_eq!(Progress::from_words(&given_up.to_words()).blames(), Some(3));
        assert_eq!(Progress::from_words(&progress.to_words()), progress);
        progress
    }

    #[test]
    fn who_is_missing_is_found_before_who_differs() {
        let world = |sums: &[usize], waits| of(Axis::World, sums, waits);
        let own = world(&[4, 6, 8], true);
        let found = |peers: &[(usize, Progress)]| {
            let peers: Vec<_> = peers.iter().map(|(peer, of)| (*peer, true, *of)).collect();
            own.stall(&peers)
        };
        assert_eq!(found(&[(1, own), (2, own)]), Stall::Unknown);
        // One that runs ahead, and the two that it waits for; of these the last.
        let stuck = [world(&[4, 6], false), world(&[4], false)];
        let ahead = world(&[4, 6, 8, 2], true);
        let stall = found(&[(1, ahead), (2, stuck[0]), (3, stuck[1])]);
        let Stall::Missing {
            peer,
            theirs,
            ours,
            last,
        } = &stall
        else {
            panic!("{stall}");
        };
        assert_eq!((*peer, *theirs, *ours), (3, 1, 3));
        assert_eq!(last, "an all-reduce of 8 f32 of all ranks");
        // Fewer, another one, and the same in another order.
        for (sums, theirs, last) in [
            (&[4, 8][..], 2, 8),
            (&[4, 6, 9], 3, 9),
            (&[6, 4, 8], 3, 8),
            (&[], 0, 0),
        ] {
            let stall = found(&[(1, own), (2, world(sums, true))]);
            let Stall::Diverged {
                peer,
                theirs: count,
                their_last,
                ..
            } = &stall
            else {
                panic!("{stall}");
            };
            assert_eq!((*peer, *count), (2, theirs));
            let expected = match last {
                0 => "none".to_owned(),
                _ => format!("an all-reduce of {last} f32 of all ranks"),
            };
            assert_eq!(*their_last, expected);
        }
    }

    #[test]
    fn other_dp_ranks_exchange_other_things_among_themselves() {
        let own = of(Axis::Attention, &[4], true);
        let other = of(Axis::Attention, &[6], true);
        assert_eq!(own.stall(&[(1, false, other)]), Stall::Unknown);
        let stall = own.stall(&[(1, true, other)]);
        assert!(matches!(stall, Stall::Diverged { peer: 1, .. }), "{stall}");
    }
}

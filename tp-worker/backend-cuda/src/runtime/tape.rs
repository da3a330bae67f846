//! Record of the work that is asked of a stream, as a digest.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_backend::Exchanged;

const OFF: u8 = 0;
const LISTENS: u8 = 1;
const REHEARSES: u8 = 2;
const RECORDS: u8 = 3;

/// Treatment of work that is asked for while the tape listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// The work runs.
    Run,
    /// The work does not run: only its digest is computed.
    Rehearsal,
    /// The device records the work, to run it later.
    Recording,
}

/// Notes the work that is asked of a stream while the tape listens. Equal work over equal
/// memory has an equal digest.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    mode: AtomicU8,
    /// FNV-1a over words.
    digest: AtomicU64,
    exchanges: Mutex<Vec<Exchanged>>,
}

/// Work that was asked of a stream.
pub(crate) struct Asked {
    /// Digest of all of the work.
    pub(crate) digest: u64,
    /// Collectives in order; peers have to ask for the same.
    pub(crate) exchanges: Vec<Exchanged>,
}

impl Tape {
    /// Starts to listen.
    pub(crate) fn start(&self, take: Take) {
        self.digest.store(0xcbf2_9ce4_8422_2325, Ordering::Relaxed);
        self.exchanges().clear();
        let mode = match take {
            Take::Run => LISTENS,
            Take::Rehearsal => REHEARSES,
            Take::Recording => RECORDS,
        };
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Stops listening, and returns the work asked for.
    pub(crate) fn stop(&self) -> Asked {
        self.mode.store(OFF, Ordering::Relaxed);
        Asked {
            digest: self.digest.load(Ordering::Relaxed),
            exchanges: std::mem::take(&mut self.exchanges()),
        }
    }

    /// Notes a collective and its addresses; returns true if the collective is to run.
    pub(crate) fn note_exchange(&self, exchanged: &Exchanged, places: [u64; 2]) -> bool {
        if !self.listens() {
            return true;
        }
        self.exchanges().push(*exchanged);
        let [a, b, c, d] = exchanged.to_words().map(u64::from);
        let [from, to] = places;
        self.note(&[a, b, c, d, from, to], b"collective")
    }

    fn exchanges(&self) -> MutexGuard<'_, Vec<Exchanged>> {
        self.exchanges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listens(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != OFF
    }

    /// True while work is recorded and does not run.
    pub(crate) fn records(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == RECORDS
    }

    /// Notes work, by words and bytes that distinguish it from all other work. Returns true if
    /// the work is to run.
    pub(crate) fn note(&self, words: &[u64], bytes: &[u8]) -> bool {
        let mode = self.mode.load(Ordering::Relaxed);
        if mode == OFF {
            return true;
        }
        let of_bytes = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let before = self.digest.load(Ordering::Relaxed);
        let after = words
            .iter()
            .copied()
            .chain(of_bytes)
            .fold(before, |digest, word| {
                (digest ^ word)
                    .wrapping_mul(0x0100_0000_01b3)
                    .rotate_left(23)
            });
        self.digest.store(after, Ordering::Relaxed);
        mode != REHEARSES
    }
}

//! What is asked of a stream, as a number.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const OFF: u8 = 0;
const LISTENS: u8 = 1;
const REHEARSES: u8 = 2;

/// Takes down what is asked of a stream while it listens: two runs of the same work
/// over the same memory have the same number.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    mode: AtomicU8,
    /// FNV-1a over words.
    digest: AtomicU64,
}

impl Tape {
    /// Listens from now on. A `rehearsal` is not run, so that nothing comes of it but
    /// its number.
    pub(crate) fn start(&self, rehearsal: bool) {
        self.digest.store(0xcbf2_9ce4_8422_2325, Ordering::Relaxed);
        let mode = if rehearsal { REHEARSES } else { LISTENS };
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Listens no more; the number of what was asked.
    pub(crate) fn stop(&self) -> u64 {
        self.mode.store(OFF, Ordering::Relaxed);
        self.digest.load(Ordering::Relaxed)
    }

    pub(crate) fn listens(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != OFF
    }

    /// Takes down that something was asked for, by words and bytes that tell it from
    /// everything else; whether it is to be run.
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

//! Counts of captured operations. A captured operation meets only the operation of its number
//! on its peers, and an operation that was not captured meets only such operations. NCCL wants
//! all ranks or none to capture an operation ("Using NCCL with CUDA Graphs"), and does not say
//! what becomes of others: here they wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Number of a captured operation among those of its kind, counted from one; zero if it was not
/// captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Captured(pub(super) u64);

/// Number of operations of each kind that a rank has captured since it joined.
#[derive(Default)]
pub(super) struct Captures(Mutex<BTreeMap<Kind, u64>>);

/// Kinds of operations, which are counted apart: all operations of a kind meet in the order of
/// their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Collective,
    /// A letter to `peer`, or from it.
    Letter {
        sends: bool,
        peer: usize,
    },
}

impl Captures {
    /// Number of a collective, the next one if a graph `captures` the collective.
    pub(super) fn collective(&self, captures: bool) -> Captured {
        self.next(Kind::Collective, captures)
    }

    /// Number of a letter to `peer`, or from it; the next one if a graph `captures` the letter.
    pub(super) fn letter(&self, captures: bool, sends: bool, peer: usize) -> Captured {
        self.next(Kind::Letter { sends, peer }, captures)
    }

    fn next(&self, kind: Kind, captures: bool) -> Captured {
        if !captures {
            return Captured(0);
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind).or_default();
        *count += 1;
        Captured(*count)
    }
}

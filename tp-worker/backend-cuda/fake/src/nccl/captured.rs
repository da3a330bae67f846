//! Which operations ranks have captured: a captured operation meets the one of the same
//! number of its peers alone, and one that was not captured only such. NCCL wants all ranks
//! or none to capture an operation ("Using NCCL with CUDA Graphs"), and says nothing of what
//! becomes of others: they wait here.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The number of a captured operation among those of its kind, counted from one; zero for
/// one that was not captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Captured(pub(super) u64);

/// How many a rank has captured since it joined, of each kind.
#[derive(Default)]
pub(super) struct Captures(Mutex<BTreeMap<Kind, u64>>);

/// Operations that are counted together: all of a kind meet in the order of their numbers.
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
    /// The number of a collective, the next one where a graph `captures` it.
    pub(super) fn collective(&self, captures: bool) -> Captured {
        self.next(Kind::Collective, captures)
    }

    /// The same of a letter to `peer`, or from it.
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

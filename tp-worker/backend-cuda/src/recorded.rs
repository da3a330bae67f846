//! What recorded passes were seen to take of the GPU's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Graphs that there are, and what the GPU had less of when each was made. Others who
/// take or give back memory meanwhile show in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// How many.
    pub graphs: u64,
    /// Bytes of them all.
    pub bytes: u64,
}

/// Adds up what graphs take, for as long as they live.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Sums>);

#[derive(Default)]
struct Sums {
    graphs: AtomicU64,
    bytes: AtomicU64,
}

/// A graph's part.
pub(crate) struct Share {
    ledger: Ledger,
    bytes: u64,
}

impl Ledger {
    /// Counts a graph, for as long as the result lives.
    pub(crate) fn count(&self, bytes: usize) -> Share {
        let bytes = bytes as u64;
        self.0.graphs.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let ledger = self.clone();
        Share { ledger, bytes }
    }

    /// What there is.
    pub(crate) fn sum(&self) -> Recorded {
        Recorded {
            graphs: self.0.graphs.load(Ordering::Relaxed),
            bytes: self.0.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let sums = &self.ledger.0;
        sums.graphs.fetch_sub(1, Ordering::Relaxed);
        sums.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

//! Memory of the GPU that recorded passes were seen to take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of living graphs, and the GPU memory that they took: the loss of free memory while
/// each was made. Other users of the GPU count in it, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of graphs.
    pub graphs: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Totals over all graphs that exist: their number, and the memory that they take.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Totals>);

#[derive(Default)]
struct Totals {
    graphs: AtomicU64,
    bytes: AtomicU64,
}

/// A graph's part of the sums, subtracted when it is dropped.
pub(crate) struct GraphShare {
    ledger: Ledger,
    bytes: u64,
}

impl Ledger {
    /// Counts a graph of `bytes` for as long as the result lives.
    pub(crate) fn count(&self, bytes: usize) -> GraphShare {
        let bytes = bytes as u64;
        self.0.graphs.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let ledger = self.clone();
        GraphShare { ledger, bytes }
    }

    /// Current sums.
    pub(crate) fn sum(&self) -> Recorded {
        Recorded {
            graphs: self.0.graphs.load(Ordering::Relaxed),
            bytes: self.0.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for GraphShare {
    fn drop(&mut self) {
        let sums = &self.ledger.0;
        sums.graphs.fetch_sub(1, Ordering::Relaxed);
        sums.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

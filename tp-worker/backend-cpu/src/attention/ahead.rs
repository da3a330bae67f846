//! Keys and values asked for before they are needed.

use super::cache::{CpuKvCache, Data};
use super::cells::Cells;
use crate::prefetch::far;

/// Bytes that come at once.
const LINE: usize = 64;

/// The next block, fetched a few lines at a time while the current one is
/// worked on: a burst would fill the processor's queue of misses and stall it.
pub(crate) struct Ahead {
    /// The block's cells.
    pub cells: Cells,
    /// Rows already asked for.
    done: usize,
}

impl Ahead {
    pub(crate) const EMPTY: Self = Self {
        cells: Cells::EMPTY,
        done: 0,
    };

    /// Starts over with other cells, which the caller then fills in.
    pub(crate) fn restart(&mut self) -> &mut Cells {
        self.done = 0;
        self.cells.clear();
        &mut self.cells
    }

    /// Counts the first `count` positions as asked for by somebody else.
    pub(crate) fn skip(&mut self, count: usize) {
        self.done = self.cells.len().min(count);
    }

    /// Asks for the keys and values of `count` more positions.
    #[inline]
    pub(crate) fn fetch(&mut self, cache: &CpuKvCache, count: usize) {
        let rows = self.cells.rows();
        let end = rows.len().min(self.done + count);
        for &row in &rows[self.done..end] {
            for row in [row, row + cache.values_after()] {
                prefetch_row(cache, row);
            }
        }
        self.done = end;
    }
}

#[inline(always)]
fn prefetch_row(cache: &CpuKvCache, row: usize) {
    if let Data::Int8(_, scales) = &cache.data {
        far(scales.as_ptr().wrapping_add(row));
    }
    let (data, bytes) = cache.bytes();
    let start = data.wrapping_add(row * bytes);
    for line in (0..bytes).step_by(LINE) {
        far(start.wrapping_add(line));
    }
}

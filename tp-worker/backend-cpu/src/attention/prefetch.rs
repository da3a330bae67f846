//! Keys and values that are asked for before they are needed.

use std::ops::Range;

use super::cache::{CpuKvCache, Data};
use super::cells::Cells;
use crate::prefetch::{far, near};

/// Bytes of a cache line, which come at once.
const LINE: usize = 64;

/// The next block. It is fetched a few lines at a time while the current one is worked on: a
/// burst would fill the processor's queue of misses and stall it.
pub(crate) struct Ahead {
    /// The block's cells.
    pub cells: Cells,
    /// Keys and values already asked for.
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

    /// Asks for nothing: the processor's own prefetching follows rows that are read in
    /// order, and further requests take the places of its misses.
    pub(crate) fn skip(&mut self) {
        self.done = 2 * self.cells.len();
    }

    /// Hands out `count` more rows to ask for: all keys come before the values,
    /// since memory is faster at one stream than at two in turn.
    #[inline]
    pub(crate) fn hand_out<'a>(&'a mut self, cache: &'a CpuKvCache, count: usize) -> Asking<'a> {
        let (rows, done) = (self.cells.rows(), self.done);
        self.done = (2 * rows.len()).min(done + count);
        Asking::new(cache, rows, done..self.done)
    }

    /// Asks for `count` more rows.
    #[inline]
    pub(crate) fn fetch(&mut self, cache: &CpuKvCache, count: usize) {
        self.hand_out(cache, count).until(1, 1);
    }
}

/// Rows to ask for, spread evenly over some work.
pub(crate) struct Asking<'a> {
    /// Row 0 of the cache, and the bytes of a row.
    data: *const u8,
    bytes: usize,
    /// True if rows go into the first-level cache, false if they go into the second.
    near: bool,
    /// Rows from a key to its value.
    values_after: usize,
    scales: Option<&'a [f32]>,
    /// Number of rows whose scales lie in one line, less one; 0 where their scales may lie
    /// apart.
    together: usize,
    /// Rows of keys.
    rows: &'a [usize],
    /// Keys and values to ask for, numbered keys first; and the number of them asked for so
    /// far.
    turns: Range<usize>,
    done: usize,
}

impl<'a> Asking<'a> {
    fn new(cache: &'a CpuKvCache, rows: &'a [usize], turns: Range<usize>) -> Self {
        /// Scales of a line.
        const SCALES: usize = LINE / size_of::<f32>();
        let (data, bytes) = cache.bytes();
        let together = cache.shape.page_size.is_multiple_of(SCALES);
        Self {
            data,
            bytes,
            near: cache.near,
            values_after: cache.values_after(),
            scales: match &cache.data {
                Data::Int8(_, scales) => Some(scales),
                _ => None,
            },
            together: if together { SCALES - 1 } else { 0 },
            rows,
            turns,
            done: 0,
        }
    }

    /// An empty list: there is nothing to ask for.
    pub(crate) const NOTHING: Asking<'static> = Asking {
        data: std::ptr::null(),
        bytes: 0,
        near: false,
        values_after: 0,
        scales: None,
        together: 0,
        rows: &[],
        turns: 0..0,
        done: 0,
    };

    /// Asks for the rows that are due when `part` of `all` work is done.
    #[inline(always)]
    pub(crate) fn until(&mut self, part: usize, all: usize) {
        while self.done * all < part * self.turns.len() {
            let turn = self.turns.start + self.done;
            let value = turn.checked_sub(self.rows.len());
            self.ask(match value {
                Some(index) => self.rows[index] + self.values_after,
                None => self.rows[turn],
            });
            self.done += 1;
        }
    }

    /// Returns true if there is nothing left to ask for.
    #[inline(always)]
    pub(crate) fn is_done(&self) -> bool {
        self.done == self.turns.len()
    }

    #[inline(always)]
    fn ask(&self, row: usize) {
        if let Some(scales) = self.scales
            && row & self.together == 0
        {
            far(scales.as_ptr().wrapping_add(row));
        }
        let start = self.data.wrapping_add(row * self.bytes);
        for line in (0..self.bytes).step_by(LINE) {
            let line = start.wrapping_add(line);
            if self.near { near(line) } else { far(line) }
        }
    }
}

//! The places of a request's positions in the cache.

/// Positions of a block: the unit of the online softmax.
pub(crate) const BLOCK: usize = 64;

/// The keys or values of one head of one layer, counted in rows of `head_dim` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    /// Row of page 0, offset 0.
    pub(super) start: usize,
    /// Rows from one page to the next.
    pub(super) page_stride: usize,
    pub(super) page_size: usize,
    pub(super) pages: usize,
}

impl Plane {
    /// The row of a cell.
    ///
    /// # Panics
    /// Panics when the cache has no such page.
    #[inline(always)]
    pub(super) fn row(&self, page: usize, offset: usize) -> usize {
        assert!(page < self.pages, "page {page} lies outside the cache");
        self.start + page * self.page_stride + offset
    }
}

/// Returns true if each of these rows follows the one before. So do rows of one page, and
/// rows of pages that were granted in order. There is at least one row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn is_run(rows: &[usize]) -> bool {
    rows.iter().zip(rows[0]..).all(|(&row, next)| row == next)
}

/// Cache rows of the keys of up to 64 positions, in order.
#[derive(Debug)]
pub(crate) struct Cells {
    rows: [usize; BLOCK],
    count: usize,
}

impl Cells {
    pub(crate) const EMPTY: Self = Self {
        rows: [0; BLOCK],
        count: 0,
    };

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds consecutive positions of a request, through its page table.
    pub(crate) fn extend(
        &mut self,
        plane: &Plane,
        pages: &[u32],
        positions: std::ops::Range<usize>,
    ) {
        if positions.is_empty() {
            return;
        }
        let mut page = positions.start / plane.page_size;
        let mut offset = positions.start % plane.page_size;
        let mut left = positions.len();
        while left > 0 {
            let run = left.min(plane.page_size - offset);
            let row = plane.row(pages[page] as usize, offset);
            let slots = &mut self.rows[self.count..self.count + run];
            slots
                .iter_mut()
                .zip(row..)
                .for_each(|(slot, row)| *slot = row);
            self.count += run;
            left -= run;
            (page, offset) = (page + 1, 0);
        }
    }

    /// Starts over with the positions `block`. Those before `first`, the first one that anyone
    /// sees, stand on its row: whatever lies behind it is not read.
    pub(crate) fn fill(
        &mut self,
        plane: &Plane,
        pages: &[u32],
        block: std::ops::Range<usize>,
        first: usize,
    ) {
        let hidden = first.clamp(block.start, block.end) - block.start;
        self.skip(hidden);
        self.extend(plane, pages, block.start + hidden..block.end);
        self.hide(hidden);
    }

    /// Starts over behind `hidden` positions, which [`Self::hide`] gives rows.
    pub(crate) fn skip(&mut self, hidden: usize) {
        self.count = hidden;
    }

    /// Makes the first `hidden` positions stand on the row of the next one.
    pub(crate) fn hide(&mut self, hidden: usize) {
        if hidden < self.count {
            let (behind, seen) = self.rows.split_at_mut(hidden);
            behind.fill(seen[0]);
        }
    }

    /// The cache rows, one per position.
    pub(crate) fn rows(&self) -> &[usize] {
        &self.rows[..self.count]
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

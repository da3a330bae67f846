//! The pages of each slot: the request-to-page table.

use std::ops::Range;

use lockstep_speculation::PageTable;

use super::{PlanError, WorkerLimits};

/// One row per slot, in one allocation that batches point into.
#[derive(Debug)]
pub struct PageTables {
    entries: Vec<u32>,
    width: usize,
    page_size: usize,
    /// Number of pages granted, per slot.
    granted: Vec<usize>,
    /// Number of page tables that hold a page, per page.
    owners: Vec<u32>,
}

impl PageTables {
    pub fn new(limits: &WorkerLimits) -> Self {
        let width = limits.table_width();
        Self {
            entries: vec![0; limits.step.requests * width],
            width,
            page_size: limits.page_size,
            granted: vec![0; limits.step.requests],
            owners: vec![0; limits.pages],
        }
    }

    /// Returns all rows, `[slots, width]`. The batch borrows them during a pass.
    pub fn entries(&mut self) -> &mut Vec<u32> {
        &mut self.entries
    }

    /// Returns all rows and the page size, in the form that drafters read.
    pub fn table(&self) -> PageTable<'_> {
        PageTable {
            entries: &self.entries,
            page_size: self.page_size as u32,
        }
    }

    /// Returns the number of positions that the pages of `slot` hold.
    pub fn held(&self, slot: usize) -> usize {
        self.granted[slot] * self.page_size
    }

    /// Returns the start of `slot`'s row in [`Self::entries`].
    pub fn start(&self, slot: usize) -> usize {
        slot * self.width
    }

    /// Appends `pages` to the table of `slot`, an existing slot.
    ///
    /// # Errors
    /// [`PlanError::UnknownPage`], [`PlanError::TableFull`].
    pub fn grant(&mut self, slot: usize, pages: &[u32]) -> Result<(), PlanError> {
        for page in pages {
            let Some(owners) = self.owners.get_mut(*page as usize) else {
                return Err(PlanError::UnknownPage {
                    slot: slot as u32,
                    page: *page,
                    pages: self.owners.len(),
                });
            };
            if self.granted[slot] == self.width {
                return Err(PlanError::TableFull {
                    slot: slot as u32,
                    width: self.width,
                });
            }
            *owners += 1;
            self.entries[slot * self.width + self.granted[slot]] = *page;
            self.granted[slot] += 1;
        }
        Ok(())
    }

    /// Empties the table of `slot`.
    pub fn release(&mut self, slot: usize) {
        let start = slot * self.width;
        for page in &self.entries[start..start + self.granted[slot]] {
            self.owners[*page as usize] -= 1;
        }
        self.granted[slot] = 0;
    }

    /// Checks that `slot` may write positions `range`: it has the pages, and each of them
    /// stands once, in this table alone.
    ///
    /// # Errors
    /// [`PlanError::PagesMissing`], [`PlanError::PageShared`].
    pub fn check_write(&self, slot: usize, range: Range<u32>) -> Result<(), PlanError> {
        let (first, needed) = (
            range.start as usize / self.page_size,
            (range.end as usize).div_ceil(self.page_size),
        );
        if needed > self.granted[slot] {
            return Err(PlanError::PagesMissing {
                slot: slot as u32,
                end: range.end,
                needed,
                granted: self.granted[slot],
            });
        }
        let start = slot * self.width;
        for page in &self.entries[start + first..start + needed] {
            let owners = self.owners[*page as usize];
            if owners != 1 {
                return Err(PlanError::PageShared {
                    slot: slot as u32,
                    page: *page,
                    owners,
                });
            }
        }
        Ok(())
    }

    /// Returns the cache cell of a position that [`Self::check_write`] allowed.
    pub fn cell(&self, slot: usize, position: u32) -> u32 {
        let (page, offset) = (
            position as usize / self.page_size,
            position as usize % self.page_size,
        );
        self.entries[slot * self.width + page] * self.page_size as u32 + offset as u32
    }
}

//! The pages of each slot: the request-to-page tables.

use std::ops::Range;

use lockstep_speculation::PageTable;
use lockstep_types::KvPages;

use super::{PlanError, WorkerLimits};

/// Entry of a page table that names no page: page 0 is kept for padding.
const ABSENT: u32 = 0;

/// One row per slot for each group of layers, in one allocation that batches point into: all
/// rows of the first group, then those of the next one. The rows of a slot are equally long.
/// In groups with sliding windows, which come last, page 0 stands at the positions that no query
/// of the slot sees any more. Their pages belong to somebody else.
#[derive(Debug)]
pub struct PageTables {
    /// Page numbers, `[groups, slots, width]`.
    entries: Vec<u32>,
    groups: usize,
    slots: usize,
    width: usize,
    page_size: usize,
    /// Number of pages granted in each group, per slot.
    granted: Vec<usize>,
    /// Number of page tables that hold a page, `[groups, pages]`.
    owners: Vec<u32>,
    /// Numbers of pages of the groups. No group has more than the first.
    pages: KvPages,
    /// Windows of the last groups.
    windows: Vec<u32>,
    /// Number of leading pages that a slot has no more in these groups, `[windows, slots]`.
    gone: Vec<usize>,
}

impl PageTables {
    pub fn new(limits: &WorkerLimits, windows: &[usize]) -> Self {
        // A wider window shows all positions, as this one does.
        let window = |window: &usize| u32::try_from(*window).unwrap_or(u32::MAX);
        let (slots, width) = (limits.step.requests, limits.table_width());
        Self {
            entries: vec![0; limits.groups * slots * width],
            groups: limits.groups,
            slots,
            width,
            page_size: limits.page_size,
            granted: vec![0; slots],
            owners: vec![0; limits.groups * limits.pages.full],
            pages: limits.pages,
            windows: windows.iter().map(window).collect(),
            gone: vec![0; windows.len() * slots],
        }
    }

    /// Returns all rows. The batch borrows them during a pass.
    pub fn entries(&mut self) -> &mut Vec<u32> {
        &mut self.entries
    }

    /// Returns the number of groups of layers.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Returns the first group's rows and the page size, in the form that drafters read.
    pub fn table(&self) -> PageTable<'_> {
        self.table_in(&self.entries)
    }

    /// Returns [`Self::table`] in `entries`, which were handed out for a pass.
    pub fn table_in<'a>(&self, entries: &'a [u32]) -> PageTable<'a> {
        PageTable {
            entries: entries.get(..self.slots * self.width).unwrap_or(&[]),
            page_size: self.page_size as u32,
        }
    }

    /// Returns the number of positions that the pages of `slot` hold.
    pub fn held(&self, slot: usize) -> usize {
        self.granted[slot] * self.page_size
    }

    /// Returns the start of `slot`'s row among those of each group.
    pub fn start(&self, slot: usize) -> usize {
        slot * self.width
    }

    /// Appends `pages` to the tables of `slot`, an existing slot whose next query stands at
    /// `position`: one page of each group in turn.
    ///
    /// # Errors
    /// [`PlanError::UnevenPages`], [`PlanError::UnknownPage`], [`PlanError::PageAbsent`],
    /// [`PlanError::TableFull`].
    pub fn grant(&mut self, slot: usize, position: u32, pages: &[u32]) -> Result<(), PlanError> {
        if !pages.len().is_multiple_of(self.groups) {
            return Err(PlanError::UnevenPages {
                slot: slot as u32,
                pages: pages.len(),
                groups: self.groups,
            });
        }
        for block in pages.chunks_exact(self.groups) {
            for (group, page) in block.iter().enumerate() {
                self.check_page(slot, group, position, *page)?;
            }
            if self.granted[slot] == self.width {
                return Err(PlanError::TableFull {
                    slot: slot as u32,
                    width: self.width,
                });
            }
            for (group, page) in block.iter().enumerate() {
                if *page != ABSENT {
                    self.owners[group * self.pages.full + *page as usize] += 1;
                }
                let row = self.row(group, slot).start;
                self.entries[row + self.granted[slot]] = *page;
            }
            self.granted[slot] += 1;
        }
        Ok(())
    }

    /// Empties the tables of `slot`.
    pub fn release(&mut self, slot: usize) {
        for group in 0..self.groups {
            let start = self.row(group, slot).start;
            for page in &self.entries[start..start + self.granted[slot]] {
                if *page != ABSENT {
                    self.owners[group * self.pages.full + *page as usize] -= 1;
                }
            }
        }
        for gone in self.gone.iter_mut().skip(slot).step_by(self.slots) {
            *gone = 0;
        }
        self.granted[slot] = 0;
    }

    /// Takes the pages from the tables of `slot` that no query at `position` or behind it sees.
    /// They may belong to another slot from now on.
    pub fn forget_behind(&mut self, slot: usize, position: u32) {
        let first = self.groups - self.windows.len();
        for group in first..self.groups {
            let seen = self.first_seen(group, position).min(self.granted[slot]);
            let gone = &mut self.gone[(group - first) * self.slots + slot];
            let from = std::mem::replace(gone, seen.max(*gone));
            let row = (group * self.slots + slot) * self.width;
            for page in &mut self.entries[row + from..row + seen.max(from)] {
                if *page != ABSENT {
                    self.owners[group * self.pages.full + *page as usize] -= 1;
                    *page = ABSENT;
                }
            }
        }
    }

    /// Returns the number of the first page of a slot that a query at `position` sees.
    fn first_seen(&self, group: usize, position: u32) -> usize {
        let window = group.checked_sub(self.groups - self.windows.len());
        let first = window.map_or(0, |at| {
            (position.saturating_add(1)).saturating_sub(self.windows[at])
        });
        first as usize / self.page_size
    }

    /// Checks a page of a group that `slot`, whose next query stands at `position`, gets next.
    fn check_page(
        &self,
        slot: usize,
        group: usize,
        position: u32,
        page: u32,
    ) -> Result<(), PlanError> {
        let has_window = group >= self.groups - self.windows.len();
        let pages = if has_window {
            self.pages.window
        } else {
            self.pages.full
        };
        let block = self.granted[slot];
        if page as usize >= pages {
            return Err(PlanError::UnknownPage {
                slot: slot as u32,
                page,
                pages,
            });
        }
        if page == ABSENT && block >= self.first_seen(group, position) {
            return Err(PlanError::PageAbsent {
                slot: slot as u32,
                group,
                position: (block * self.page_size) as u32,
            });
        }
        Ok(())
    }

    /// Checks that `slot` may write positions `range`. The slot must have the pages, and each page
    /// must stand only once in all tables of its group, so no other slot has it.
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
        for group in 0..self.groups {
            let row = &self.entries[self.row(group, slot)];
            for page in &row[first..needed] {
                let owners = self.owners[group * self.pages.full + *page as usize];
                if owners != 1 {
                    return Err(PlanError::PageShared {
                        slot: slot as u32,
                        group,
                        page: *page,
                        owners,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the cell of a position in the cache of a group, where [`Self::check_write`]
    /// allowed the position.
    pub fn cell(&self, group: usize, slot: usize, position: u32) -> u32 {
        let (page, offset) = (
            position as usize / self.page_size,
            position as usize % self.page_size,
        );
        let row = self.row(group, slot).start;
        self.entries[row + page] * self.page_size as u32 + offset as u32
    }

    /// Returns the range of a slot's row in the entries.
    fn row(&self, group: usize, slot: usize) -> Range<usize> {
        let start = (group * self.slots + slot) * self.width;
        start..start + self.width
    }
}

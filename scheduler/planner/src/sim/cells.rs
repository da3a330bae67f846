//! The simulated memory: cells that hold the token written to them.

use std::ops::Range;

use super::slot::SimSlot;
use crate::{DraftKv, PlannerConfig};

/// Content of a cell after a rejected draft.
const GARBAGE: u32 = u32::MAX;

/// Tokens that a drafter's keys and values at a position depend on, beside all tokens before:
/// the position's token, and under [`DraftKv::Pairs`] the next one.
type DraftCell = (u32, Option<u32>);

/// KV cells of target and drafter. Each group of the target's layers has its own page tables.
/// The drafter's cells lie under the first group's tables.
#[derive(Debug)]
pub(super) struct Cells {
    page_size: u32,
    draft_kv: DraftKv,
    /// Cells of each group.
    target: Vec<Vec<Option<u32>>>,
    /// Number of groups that keep all positions. They come first.
    full: usize,
    /// Windows of the other groups.
    windows: Vec<u32>,
    draft: Vec<Option<DraftCell>>,
}

impl Cells {
    pub fn new(config: &PlannerConfig) -> Self {
        let page = config.page_size as usize;
        let cells = config.num_pages as usize * page;
        let drafted = if config.draft_kv == DraftKv::None {
            0
        } else {
            cells
        };
        Self {
            page_size: config.page_size,
            draft_kv: config.draft_kv,
            target: (0..config.groups())
                .map(|group| vec![None; config.pages_of_group(group) as usize * page])
                .collect(),
            full: config.kv_groups as usize,
            windows: config.windows.clone(),
            draft: vec![None; drafted],
        }
    }

    pub fn forget(&mut self) {
        self.target.iter_mut().for_each(|cells| cells.fill(None));
        self.draft.fill(None);
    }

    /// Takes the pages from a slot's table that no query at its position or behind it sees.
    pub fn forget_behind(&self, slot: &mut SimSlot) {
        let groups = self.target.len();
        for group in self.full..groups {
            let gone = self.first_seen(group, slot.kv_len) / self.page_size;
            let blocks = slot.pages.chunks_mut(groups).take(gone as usize);
            blocks.for_each(|block| block[group] = 0);
        }
    }

    /// Spoils positions that drafting and verification wrote, because nothing written there
    /// lasts.
    pub fn spoil(&mut self, slot: &SimSlot, positions: Range<u32>) {
        for position in positions {
            self.write(slot, position, GARBAGE);
            let cell = self.cell(slot, position, 0);
            if let Some(draft) = self.draft.get_mut(cell) {
                *draft = Some((GARBAGE, None));
            }
        }
    }

    /// Stores the slot's tokens from `from` up to the slot's position.
    pub fn store_target(&mut self, slot: &SimSlot, from: u32) {
        for position in from..slot.kv_len {
            self.write(slot, position, slot.tokens()[position as usize]);
        }
    }

    /// Stores the tokens that the drafter took in from `from` on.
    pub fn store_draft(&mut self, slot: &SimSlot, from: u32) {
        if self.draft_kv == DraftKv::None {
            return;
        }
        for position in from..slot.drafted {
            let cell = self.cell(slot, position, 0);
            self.draft[cell] = Some(self.depends_on(slot, position));
        }
    }

    /// Returns the first position that a query at `position` sees in a group.
    pub fn first_seen(&self, group: usize, position: u32) -> u32 {
        match group.checked_sub(self.full) {
            Some(at) => (position + 1).saturating_sub(self.windows[at]),
            None => 0,
        }
    }

    /// Checks that all cells that the slot's queries from position `from` on read hold exactly
    /// its request's tokens.
    pub fn check(&self, slot: &SimSlot, from: u32) -> Result<(), String> {
        for (group, cells) in self.target.iter().enumerate() {
            for position in self.first_seen(group, from)..slot.kv_len {
                let token = slot.tokens()[position as usize];
                if self.page(slot, position, group) == 0 {
                    return Err(format!("position {position} of group {group} is absent"));
                }
                let found = cells[self.cell(slot, position, group)];
                if found != Some(token) {
                    return Err(format!(
                        "position {position} of group {group}: {found:?}, not {token}"
                    ));
                }
            }
        }
        let drafted = if self.draft_kv == DraftKv::None {
            0
        } else {
            slot.drafted
        };
        for position in 0..drafted {
            let found = self.draft[self.cell(slot, position, 0)];
            let expected = self.depends_on(slot, position);
            if found != Some(expected) {
                return Err(format!(
                    "draft position {position}: {found:?}, not {expected:?}"
                ));
            }
        }
        Ok(())
    }

    fn depends_on(&self, slot: &SimSlot, position: u32) -> DraftCell {
        let at = position as usize;
        let next = slot.tokens().get(at + 1).copied();
        (
            slot.tokens()[at],
            next.filter(|_| self.draft_kv == DraftKv::Pairs),
        )
    }

    /// Stores a token at a position of a slot, in all groups.
    fn write(&mut self, slot: &SimSlot, position: u32, token: u32) {
        for group in 0..self.target.len() {
            let cell = self.cell(slot, position, group);
            self.target[group][cell] = Some(token);
        }
    }

    fn page(&self, slot: &SimSlot, position: u32, group: usize) -> u32 {
        let block = (position / self.page_size) as usize;
        slot.pages[block * self.target.len() + group]
    }

    fn cell(&self, slot: &SimSlot, position: u32, group: usize) -> usize {
        let page = self.page(slot, position, group);
        (page * self.page_size + position % self.page_size) as usize
    }
}

//! States of recurrent layers: one live state of each running request, copies that it keeps on
//! its way, and cached states from which other requests go on.
//!
//! A cached state belongs to the end of a cached block, by the block's page of the first group, as
//! pages of groups with windows do. Bits of a state depend on the text before its position alone,
//! so any request with that text may have written it.

use std::ops::Add;

use lockstep_types::step::StateKeep;

use crate::{IntegrityError, PlannerConfig};
use held::StateCopy;
use pool::StatePool;

mod held;
mod pool;

pub(crate) use held::HeldStates;

/// All states of a DP rank; none for models without recurrent layers.
#[derive(Debug)]
pub(super) struct States {
    page_size: u32,
    /// Distance between the positions of states that are kept in outputs.
    grid: u32,
    /// True if prefixes are cached, so that copies are of use.
    caches: bool,
    pool: StatePool,
}

/// Numbers of states by holder.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateUsage {
    /// States of requests, live ones and copies.
    pub used: u64,
    /// States of the cache, all of which can be evicted.
    pub cached: u64,
    /// All states.
    pub total: u64,
    /// States of requests that no running request knows of, or the reverse.
    pub leaked: u64,
}

impl Add for StateUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            used: self.used + other.used,
            cached: self.cached + other.cached,
            total: self.total + other.total,
            leaked: self.leaked + other.leaked,
        }
    }
}

/// A row that is being planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSpan {
    /// Furthest position that the slot can have before the row.
    pub before: u32,
    /// Furthest position that the slot can have after it.
    pub after: u32,
    /// True for a decode row.
    pub decodes: bool,
    /// Most tokens of the whole text.
    pub longest: u32,
}

impl States {
    pub fn new(config: &PlannerConfig) -> Self {
        let commits = config.reserve.max_commit_per_decode();
        let least = config.state_interval.max(commits);
        Self {
            page_size: config.page_size,
            grid: least.next_multiple_of(config.page_size),
            caches: config.radix_cache,
            pool: StatePool::new(config.states, config.max_running_requests, config.num_pages),
        }
    }

    /// Returns true if the model has no recurrent layers.
    pub fn is_empty(&self) -> bool {
        self.pool.capacity() == 0
    }

    /// Returns the length of the longest prefix, in blocks, of the cached `blocks` at whose end
    /// a state is cached. `blocks` yields the first group's pages.
    pub fn usable(&self, blocks: &[u32]) -> usize {
        if self.is_empty() {
            return blocks.len();
        }
        let has_state = |block: &u32| self.pool.of_block(*block).is_some();
        blocks.iter().rposition(has_state).map_or(0, |at| at + 1)
    }

    /// Gives a live state to a request that goes on behind the cached `blocks`, the first group's
    /// pages, at whose end a state is cached. The request's text has `len` known tokens, of which
    /// `found` blocks are cached in the groups that keep all positions.
    pub fn enter(&mut self, held: &mut HeldStates, blocks: &[u32], found: usize, len: u32) {
        if self.is_empty() {
            return;
        }
        let matched = blocks.len() as u32 * self.page_size;
        let restore = blocks.last().and_then(|block| self.pool.of_block(*block));
        self.pool.touch(blocks);
        let live = self.pool.take_live();
        debug_assert!(live.is_some(), "there is a state for each slot");
        held.enter(live, restore, matched);
        if self.caches && self.pool.most_copies() > 0 {
            // Where another text went on, or the pages would serve no longer; and the last block
            // boundary of the text from which another request can go on.
            let branch = found as u32 * self.page_size;
            let end = len.saturating_sub(1) / self.page_size * self.page_size;
            held.want([branch, end]);
        }
    }

    /// Appends the copies to `list` that a row writes if it passes their positions.
    ///
    /// Rows of prompts pass all positions up to their ends. In an output a copy is asked for at the
    /// next position of the grid once the row can reach it. No earlier row can have passed it then,
    /// and every row asks again until a result shows that it was passed. So it was written if the
    /// state's known position is at it or behind it. A copy that was refused asks again with the
    /// credit that it had then: once refused, it has aged the cached states once.
    pub fn plan_keeps(&mut self, held: &mut HeldStates, row: RowSpan, list: &mut Vec<StateKeep>) {
        if self.is_empty() || !self.caches {
            return;
        }
        if !row.decodes {
            while let Some(position) = held.take_wanted(row.after) {
                let credit = self.pool.credit(held.gain(position));
                let state = self.pool.take_copy(credit);
                list.extend(state.map(|state| held.ask(position, state, false)));
            }
            return;
        }
        let next = (row.before / self.grid + 1) * self.grid;
        if let Some(asked) = held.asked_in_output() {
            list.push(asked);
        } else if next <= row.after && next < row.longest {
            let credit = self.pool.credit(held.gain(next));
            let state = self.pool.take_copy(held.first_credit(next, credit));
            list.extend(state.map(|state| held.ask(next, state, true)));
        }
    }

    /// Returns the furthest position up to `to`, of a running request's prompt, at which a state
    /// is to be cached: a copy is asked for or written, or is wanted and there is room for one. If
    /// there is none, outputs have the copies, as a rule until they end.
    pub fn promises(&self, held: &HeldStates, to: u32) -> u32 {
        let room = self.pool.copies() < self.pool.most_copies();
        held.promises(to, room)
    }

    /// Notes that the live state of a request is known to have come to `position`. A copy in the
    /// output takes the place of the one before.
    pub fn pass(&mut self, held: &mut HeldStates, position: u32) {
        if let Some(replaced) = held.pass(position) {
            self.pool.release(replaced);
        }
    }

    /// Returns the furthest position at which a running request has copies that are not cached
    /// yet; 0 if it has none. `with_output` says if copies in the output count.
    pub fn furthest_copy(held: &HeldStates, up_to: u32, with_output: bool) -> u32 {
        let written = held.written(with_output).map(|copy| copy.position);
        written.filter(|at| *at <= up_to).max().unwrap_or(0)
    }

    /// Caches the written copies at the ends of cached blocks. `blocks` are the first group's
    /// pages of the request's cached prefix, from the beginning.
    pub fn cache(&mut self, held: &mut HeldStates, blocks: &[u32], with_output: bool) {
        let (page, pool) = (self.page_size, &mut self.pool);
        held.take_written(
            with_output,
            |StateCopy {
                 position, state, ..
             }| {
                let path = blocks.get(..(position / page) as usize);
                if let Some(path) = path {
                    pool.cache(state, path, position);
                }
                path.is_some()
            },
        );
    }

    /// Takes all states from a request. Rows in flight may still write them.
    pub fn leave(&mut self, held: &mut HeldStates) {
        held.all().for_each(|state| self.pool.release(state));
        held.clear();
    }

    /// Forgets a block that is no longer cached.
    pub fn uncache(&mut self, block: u32) {
        self.pool.uncache(block);
    }

    /// Notes that block `to` is cached in the place of block `from`.
    pub fn replace(&mut self, from: u32, to: u32) {
        self.pool.move_block(from, to);
    }

    /// Frees all states, whoever has them.
    pub fn reset(&mut self) {
        self.pool.reset();
    }

    /// Counts the states by holder; `holders` are the requests with a slot.
    pub fn usage<'a>(&self, holders: impl Iterator<Item = &'a HeldStates>) -> StateUsage {
        let known: usize = holders.map(|held| held.all().count()).sum();
        let used = u64::from(self.pool.held());
        StateUsage {
            used,
            cached: u64::from(self.pool.cached()),
            total: u64::from(self.pool.capacity()),
            leaked: used.abs_diff(known as u64),
        }
    }

    /// Checks that every state has exactly one holder, among free ones, the cache and `holders`.
    /// `cached` says if a block is cached.
    pub fn check<'a>(
        &self,
        holders: impl Iterator<Item = &'a HeldStates>,
        cached: impl Fn(u32) -> bool,
    ) -> Result<(), IntegrityError> {
        let mut live = vec![0; self.pool.capacity() as usize];
        let mut copies = live.clone();
        for held in holders {
            held.live()
                .iter()
                .for_each(|state| live[*state as usize] += 1);
            held.copies().for_each(|state| copies[state as usize] += 1);
        }
        let checked = self.pool.check(&live, &copies, cached);
        checked.map_err(|(state, holders)| IntegrityError::State { state, holders })
    }

    /// Returns true if a request of `committed` tokens has a live state exactly if it runs and
    /// the model has states, and its copies fit where it stands.
    pub fn fits(&self, held: &HeldStates, runs: bool, committed: u32) -> bool {
        held.live().is_some() == (runs && !self.is_empty()) && held.is_ordered(committed)
    }
}

#[cfg(test)]
mod tests;

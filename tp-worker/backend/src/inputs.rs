//! The largest batch that a device has room for, and the rules for its batches.

use std::ops::Range;

use crate::choice::broken_rule as broken_choice;
use crate::drafting::broken_rule as broken_chain;
use crate::state_rules::broken_rule as broken_state;
use crate::{Batch, ChainLimits, ChoiceLimits};

/// The largest batch that a device keeps room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLimits {
    /// Number of new tokens of all rows. The logits of all of them may be wanted.
    pub tokens: usize,
    /// Number of rows.
    pub requests: usize,
    /// Number of groups of layers that cells and page tables come for.
    pub groups: usize,
    /// Number of entries of all rows' page tables together, in each group.
    pub pages: usize,
    /// Number of tokens per page of the cache that the batch reads.
    pub page_size: usize,
    /// Number of words of [`Batch::masks`].
    pub mask_words: usize,
    /// Number of nodes that all rows replay together; 0 for a model without recurrent layers. Rows
    /// may keep a copy of their state behind each token and each replayed node.
    pub replays: usize,
    /// Limits of the choices; zero if the device chooses no tokens.
    pub choices: ChoiceLimits,
    /// Limits of chains that come with a batch; zero if the device drafts none.
    pub chain: ChainLimits,
}

impl InputLimits {
    /// Returns the room that `batch` takes, over caches with pages of `page_size` tokens.
    pub fn of(batch: &Batch<'_>, page_size: usize) -> Self {
        let groups = batch.cells.len().checked_div(batch.tokens.len());
        Self {
            tokens: batch.tokens.len(),
            requests: batch.rows.len(),
            groups: groups.unwrap_or(1),
            pages: batch.rows.iter().map(|row| row.pages(page_size)).sum(),
            page_size,
            mask_words: batch.masks.len(),
            // Rows with states may replay something, even if none does now.
            replays: batch.replays.len().max(batch.states.len().min(1)),
            choices: ChoiceLimits::of(&batch.choices),
            chain: ChainLimits::of(batch, page_size),
        }
    }

    /// Returns true if devices may draft what the batch verifies.
    pub fn drafts(&self) -> bool {
        self.chain.chains > 0
    }

    /// Returns the number of words of a batch of up to `tokens` tokens that may depend on the
    /// drafts. In chains these are the tokens; in trees also positions, parents and masks.
    pub fn drafted_words(&self, tokens: usize) -> usize {
        if self.choices.parents == 0 {
            return tokens;
        }
        let seen = tokens.saturating_mul((self.choices.nodes() + 1).div_ceil(64));
        let masks = 2 * seen.min(self.mask_words);
        2 * tokens + tokens.min(self.choices.parents) + masks
    }

    /// Returns the most copies of states that rows keep together, and 0 for a model without
    /// recurrent layers: one behind each token and each replayed node, and one before.
    pub fn keeps(&self) -> usize {
        match self.replays {
            0 => 0,
            replays => replays + self.tokens + self.requests,
        }
    }

    /// Returns true if there is room for `batch`.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.tokens <= self.tokens
            && batch.requests <= self.requests
            && batch.groups <= self.groups
            && batch.pages <= self.pages
            && batch.mask_words <= self.mask_words
            && batch.replays <= self.replays
            && self.choices.hold(&batch.choices)
            && self.chain.hold(&batch.chain)
    }

    /// Checks a batch before any device takes it, so that no operation reads past a list.
    ///
    /// # Panics
    /// Panics if there is no room for `batch`, or if it contradicts itself: see the fields of
    /// [`Batch`] and [`crate::Row`]. Both are bugs of the caller.
    pub fn expect(&self, batch: &Batch<'_>) {
        let needs = Self::of(batch, self.page_size);
        assert!(
            self.hold(&needs),
            "a batch of {needs:?} is staged where {self:?} fit"
        );
        let broken = broken_rule(batch, self.groups, self.page_size);
        let of_chain = |chain: &crate::ChainBatch<'_>| broken_rule(chain.first, 1, self.page_size);
        let broken = broken.or_else(|| batch.chain.as_ref().and_then(of_chain));
        let broken = broken.or_else(|| broken_chain(batch, self.page_size));
        assert!(broken.is_none(), "{}", broken.unwrap_or_default());
    }
}

/// Returns the first rule that `batch` breaks, over caches of `groups` groups.
fn broken_rule(batch: &Batch<'_>, groups: usize, page_size: usize) -> Option<&'static str> {
    let tokens = batch.tokens.len();
    if batch.positions.len() != tokens || batch.cells.len() != groups * tokens {
        return Some("every token has a position, and a cell in each group");
    }
    if !batch.pages.len().is_multiple_of(groups) {
        return Some("the page tables of all groups are equally long");
    }
    let tables = batch.pages.len() / groups;
    let wanted = batch.logit_tokens;
    let ascend = wanted.is_sorted_by(|one, next| one < next);
    if !ascend || wanted.last().is_some_and(|last| *last as usize >= tokens) {
        return Some("wanted tokens are tokens of the batch, in ascending order");
    }
    if !batch.adapters.is_empty() && batch.adapters.len() != batch.rows.len() {
        return Some("each row has a place for its adapter, or none has one");
    }
    let mut end = 0;
    for row in batch.rows {
        let start = row.start as usize;
        if row.q_len == 0 || start < end {
            return Some("a row has a token, and lies behind the row before it");
        }
        end = start + row.q_len as usize;
        if end > tokens {
            return Some("a row's tokens are tokens of the batch");
        }
        if row.pages_start as usize + row.pages(page_size) > tables {
            return Some("a row's page table lies among those of the batch");
        }
        let words = row.mask_words() * row.q_len as usize;
        let masks = batch.masks.len();
        if row.mask.is_some_and(|mask| mask as usize + words > masks) {
            return Some("a row's mask lies among those of the batch");
        }
    }
    broken_choice(&batch.choices, tokens, wanted.len()).or_else(|| broken_state(batch))
}

/// Rows to gather. `I` is a device's [`crate::Memory::Inputs`].
#[derive(Debug)]
pub enum Rows<'a, I> {
    /// The rows of wanted tokens of the staged batch, in this range of [`Batch::logit_tokens`].
    Wanted(&'a I, Range<usize>),
    /// The rows with these numbers. A recorded pass can't use it: it would repeat the list that
    /// it was recorded with.
    List(&'a [u32]),
    /// The rows with the numbers of a range, which lie together.
    Range(Range<usize>),
}

#[cfg(test)]
mod tests;

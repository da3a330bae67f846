//! How much of a batch a device has room for, and which batches it takes.

use std::ops::Range;

use crate::chain::broken_rule as broken_chain;
use crate::choice::broken_rule as broken_choice;
use crate::{Batch, ChainLimits, ChoiceLimits};

/// The largest batch that a device keeps room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLimits {
    /// New tokens of all rows; as many of them may have their logits wanted.
    pub tokens: usize,
    /// Rows.
    pub requests: usize,
    /// Entries of all rows' page tables together.
    pub pages: usize,
    /// Tokens per page of the cache that it reads.
    pub page_size: usize,
    /// Words of [`Batch::masks`].
    pub mask_words: usize,
    /// Of what the device chooses tokens by; none where it chooses none.
    pub choices: ChoiceLimits,
    /// Of chains that come with a batch; none where the device drafts none.
    pub chain: ChainLimits,
}

impl InputLimits {
    /// What `batch` takes, over a cache of pages of `page_size` tokens.
    pub fn of(batch: &Batch<'_>, page_size: usize) -> Self {
        Self {
            tokens: batch.tokens.len(),
            requests: batch.rows.len(),
            pages: batch.rows.iter().map(|row| row.pages(page_size)).sum(),
            page_size,
            mask_words: batch.masks.len(),
            choices: ChoiceLimits::of(&batch.choices),
            chain: ChainLimits::of(batch, page_size),
        }
    }

    /// Whether devices may draft what it verifies.
    pub fn drafts(&self) -> bool {
        self.chain.chains > 0
    }

    /// Words of a batch of up to so many `tokens` that may depend on what is drafted: in
    /// trees also where nodes are, what they follow and what they see.
    pub fn drafted_words(&self, tokens: usize) -> usize {
        if self.choices.parents == 0 {
            return tokens;
        }
        let seen = tokens.saturating_mul((self.choices.nodes() + 1).div_ceil(64));
        let masks = 2 * seen.min(self.mask_words);
        2 * tokens + tokens.min(self.choices.parents) + masks
    }

    /// Whether there is room for a batch that takes `batch`.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.tokens <= self.tokens
            && batch.requests <= self.requests
            && batch.pages <= self.pages
            && batch.mask_words <= self.mask_words
            && self.choices.hold(&batch.choices)
            && self.chain.hold(&batch.chain)
    }

    /// What every device asks of a batch before it takes it, so that none of
    /// its operations reads past a list.
    ///
    /// # Panics
    /// When there is no room for `batch`, or when it contradicts itself: see
    /// the fields of [`Batch`] and [`crate::Row`]. Both are a caller's bugs.
    pub fn expect(&self, batch: &Batch<'_>) {
        let needs = Self::of(batch, self.page_size);
        assert!(
            self.hold(&needs),
            "a batch of {needs:?} is staged where {self:?} fit"
        );
        let broken = broken_rule(batch, self.page_size);
        let of_chain = |chain: &crate::ChainBatch<'_>| broken_rule(chain.first, self.page_size);
        let broken = broken.or_else(|| batch.chain.as_ref().and_then(of_chain));
        let broken = broken.or_else(|| broken_chain(batch, self.page_size));
        assert!(broken.is_none(), "{}", broken.unwrap_or_default());
    }
}

/// The first rule that `batch` breaks.
fn broken_rule(batch: &Batch<'_>, page_size: usize) -> Option<&'static str> {
    let tokens = batch.tokens.len();
    if batch.positions.len() != tokens || batch.cells.len() != tokens {
        return Some("every token has a position and a cell");
    }
    let wanted = batch.logit_tokens;
    let ascend = wanted.is_sorted_by(|one, next| one < next);
    if !ascend || wanted.last().is_some_and(|last| *last as usize >= tokens) {
        return Some("wanted tokens are tokens of the batch, in ascending order");
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
        if row.pages_start as usize + row.pages(page_size) > batch.pages.len() {
            return Some("a row's page table lies among those of the batch");
        }
        let words = row.mask_words() * row.q_len as usize;
        let masks = batch.masks.len();
        if row.mask.is_some_and(|mask| mask as usize + words > masks) {
            return Some("a row's mask lies among those of the batch");
        }
    }
    broken_choice(&batch.choices, tokens, wanted.len())
}

/// Rows to gather; `I` is a device's [`crate::Backend::Inputs`].
#[derive(Debug)]
pub enum Rows<'a, I> {
    /// Those of wanted tokens of the batch that is staged: of this range of
    /// [`Batch::logit_tokens`].
    Wanted(&'a I, Range<usize>),
    /// Those with these numbers. A pass that is recorded can't name rows so: it
    /// would repeat the list that it was recorded with.
    List(&'a [u32]),
}

#[cfg(test)]
mod tests;

//! The size of a pass, and how an operation finds its batch.

use std::{fmt, ops::Range};

use crate::Batch;

/// The size of a pass: all that the host's part of it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassKey {
    /// Rows.
    pub requests: usize,
    /// New tokens of all rows.
    pub tokens: usize,
    /// New tokens of the longest row.
    pub max_q_len: usize,
    /// Tokens whose logits are wanted.
    pub wanted: usize,
}

impl Batch<'_> {
    /// Its size.
    pub fn key(&self) -> PassKey {
        let lengths = self.rows.iter().map(|row| row.q_len as usize);
        PassKey {
            requests: self.rows.len(),
            tokens: self.tokens.len(),
            max_q_len: lengths.max().unwrap_or(0),
            wanted: self.logit_tokens.len(),
        }
    }
}

impl PassKey {
    /// Whether a batch of the size `batch` runs as a pass of this size.
    pub fn holds(&self, batch: &Self) -> bool {
        batch.requests <= self.requests
            && batch.tokens <= self.tokens
            && batch.max_q_len <= self.max_q_len
            && batch.wanted <= self.wanted
    }
}

impl fmt::Display for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            tokens,
            max_q_len,
            wanted: _,
        } = self;
        write!(
            f,
            "{requests} rows of {tokens} tokens, {max_q_len} in the longest"
        )
    }
}

/// The largest batch that a device keeps room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLimits {
    /// New tokens of all rows.
    pub tokens: usize,
    /// Rows.
    pub requests: usize,
    /// Entries of all rows' page tables together.
    pub pages: usize,
    /// Tokens per page of the cache that it reads.
    pub page_size: usize,
    /// Words of [`Batch::masks`].
    pub mask_words: usize,
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
        }
    }

    /// Whether there is room for a batch that takes `batch`.
    pub fn hold(&self, batch: &Self) -> bool {
        batch.tokens <= self.tokens
            && batch.requests <= self.requests
            && batch.pages <= self.pages
            && batch.mask_words <= self.mask_words
    }
}

/// Rows to gather; `I` is a device's [`crate::Backend::Inputs`].
#[derive(Debug)]
pub enum Rows<'a, I> {
    /// Those of the staged batch's wanted tokens: such a range of
    /// [`Batch::logit_tokens`].
    Wanted(&'a I, Range<usize>),
    /// These. The list is copied to the device, so a pass that is recorded
    /// can't have it.
    List(&'a [u32]),
}

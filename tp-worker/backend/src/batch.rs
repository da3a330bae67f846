//! The ragged extend: every request brings some new tokens over its cached ones.

/// One request's part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Index of its first token in the batch.
    pub start: u32,
    /// New tokens, at least 1.
    pub q_len: u32,
    /// Cached tokens before them.
    pub kv_len: u32,
    /// Where its page table begins in [`Batch::pages`].
    pub pages_start: u32,
}

/// One forward pass over `tokens.len()` tokens of `rows.len()` requests.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids, request after request.
    pub tokens: &'a [u32],
    /// Position of each token in its request.
    pub positions: &'a [u32],
    /// Cache cell of each token: `page · page_size + offset`.
    pub cells: &'a [u32],
    /// The requests.
    pub rows: &'a [Row],
    /// Page tables, each `⌈(kv_len + q_len) / page_size⌉` long.
    pub pages: &'a [u32],
    /// Indices of tokens whose logits are wanted, ascending.
    pub logit_tokens: &'a [u32],
}

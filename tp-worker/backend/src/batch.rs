//! The ragged extend: every request brings some new tokens over its cached ones.

use crate::{ChoiceBatch, PassKey, TreeSize};

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
    /// Which of its new tokens each of them sees: where its words begin in
    /// [`Batch::masks`]. `None` is causal: new token `i` sees `0..=i`.
    pub mask: Option<u32>,
}

impl Row {
    /// Entries of its page table, over pages of `page_size` tokens.
    pub fn pages(&self, page_size: usize) -> usize {
        (self.kv_len as usize + self.q_len as usize).div_ceil(page_size)
    }

    /// Words of [`Batch::masks`] that one new token of a masked row has.
    pub fn mask_words(&self) -> usize {
        (self.q_len as usize).div_ceil(64)
    }
}

/// One forward pass over `tokens.len()` tokens of `rows.len()` requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids, request after request.
    pub tokens: &'a [u32],
    /// Position of each token in its request.
    pub positions: &'a [u32],
    /// Cache cell of each token: `page · page_size + offset`.
    pub cells: &'a [u32],
    /// The requests.
    pub rows: &'a [Row],
    /// Page tables, each [`Row::pages`] long: the pages of a request's
    /// positions in turn. There may be tables between them that no row names.
    pub pages: &'a [u32],
    /// Indices of tokens whose logits are wanted, ascending, none twice.
    pub logit_tokens: &'a [u32],
    /// Visibility among the new tokens of masked rows, such as trees of drafts:
    /// [`Row::mask_words`] words for each new token of the row in turn. Token
    /// `i` sees all `kv_len` cached tokens, and new token `j` exactly when bit
    /// `j % 64` of its word `j / 64` is set; its own bit is no exception.
    ///
    /// The tokens a query sees are attended in the order of the batch, as if
    /// they lay at consecutive positions from `kv_len` on. So where ancestors
    /// come before their descendants, a path of a tree has the bits of the same
    /// tokens in a chain.
    pub masks: &'a [u64],
    /// How a device that chooses tokens makes them of the wanted logits.
    pub choices: ChoiceBatch<'a>,
    /// Which of its tokens a device drafts that does: see [`crate::DraftChains`].
    pub chain: Option<ChainBatch<'a>>,
    /// Where another rank's device drafts them, which tells this one: see
    /// [`crate::DraftChains::tell`].
    pub told: Option<DraftShape>,
}

/// What drafts are that a device makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftShape {
    /// Each follows the one before.
    Chains,
    /// Nodes and their parents.
    Trees,
}

impl<'a> Batch<'a> {
    /// The page table of a row, over pages of `page_size` tokens.
    pub fn page_table(&self, row: &Row, page_size: usize) -> &'a [u32] {
        &self.pages[row.pages_start as usize..][..row.pages(page_size)]
    }
}

impl Batch<'_> {
    /// What drafts of it devices make, this rank's or another one's.
    pub fn draft_shape(&self) -> Option<DraftShape> {
        self.chain.as_ref().map(ChainBatch::shape).or(self.told)
    }

    /// Its size.
    pub fn key(&self) -> PassKey {
        let lengths = self.rows.iter().map(|row| row.q_len as usize);
        PassKey {
            requests: self.rows.len(),
            tokens: self.tokens.len(),
            max_q_len: lengths.max().unwrap_or(0),
        }
    }
}

/// The chains of drafts of a batch whose tokens nobody has drafted yet. In the batch
/// these are any: the device writes the drafted ones over them.
#[derive(Debug, Clone, Copy)]
pub struct ChainBatch<'a> {
    /// What the drafter's first pass takes in: a row for each chain, and of each its last
    /// token is wanted. Page tables are those of the batch, and hold all of a chain.
    pub first: &'a Batch<'a>,
    /// For each of these rows whose drafts it begins, in [`crate::ChoiceBatch::choices`]: as
    /// many as [`crate::DraftedRow::nodes`] says, the most first.
    pub requests: &'a [u32],
    /// For each token of the first pass the row of what the target's last pass has kept
    /// that it goes on from; empty for a draft that reads none of it.
    pub sources: &'a [u32],
    /// Of each of these rows how its tree grows, the deepest first; empty where all are
    /// chains. See [`crate::DraftTrees`].
    pub trees: &'a [TreeSize],
}

impl ChainBatch<'_> {
    /// What its drafts are.
    pub fn shape(&self) -> DraftShape {
        match self.trees {
            [] => DraftShape::Chains,
            _ => DraftShape::Trees,
        }
    }

    /// How deep chain or tree number `row` is to be, where it belongs to `batch`.
    pub(crate) fn depth(&self, batch: &Batch<'_>, row: usize) -> usize {
        if let Some(tree) = self.trees.get(row) {
            return tree.steps as usize;
        }
        let request = self.requests.get(row).map(|request| *request as usize);
        let drafted = request.and_then(|request| batch.choices.drafted.get(request));
        drafted.map_or(0, |drafted| drafted.nodes as usize)
    }

    /// Entries of the page table of its row `row`: as many as all of the chain needs but
    /// its last token, which is kept nowhere, or all nodes of the tree that are expanded.
    pub fn pages(&self, batch: &Batch<'_>, row: usize, page_size: usize) -> usize {
        let own = &self.first.rows[row];
        let drafts = match self.trees.get(row) {
            Some(tree) => tree.expanded(),
            None => self.depth(batch, row).saturating_sub(1),
        };
        (own.kv_len as usize + own.q_len as usize + drafts).div_ceil(page_size)
    }
}

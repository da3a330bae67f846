//! The ragged extend: every request brings some new tokens over its cached tokens.

use crate::{ChoiceBatch, PassKey, RowState, StateKeep, TreeSize};

/// One request's part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Index of the row's first token in the batch.
    pub start: u32,
    /// Number of new tokens, at least 1.
    pub q_len: u32,
    /// Number of cached tokens before the new ones.
    pub kv_len: u32,
    /// Start of the row's page table among those of each group: see [`Batch::pages`].
    pub pages_start: u32,
    /// Start of the row's mask in [`Batch::masks`], which says which new tokens each new token
    /// sees. `None` is causal: new token `i` sees `0..=i`.
    pub mask: Option<u32>,
}

impl Row {
    /// Returns the number of entries of the row's page table in each group, over pages of
    /// `page_size` tokens.
    pub fn pages(&self, page_size: usize) -> usize {
        (self.kv_len as usize + self.q_len as usize).div_ceil(page_size)
    }

    /// Returns the number of words in [`Batch::masks`] of each new token of a masked row.
    pub fn mask_words(&self) -> usize {
        (self.q_len as usize).div_ceil(64)
    }
}

/// A ragged batch: one forward pass over `tokens.len()` tokens of `rows.len()` requests.
///
/// Each group of layers with equal caches has its own pages. So cells and page tables come once
/// for each group, the groups one after the other. Example: a batch of three tokens in two
/// groups has six cells, first the three of the first group, then the three of the second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids, request after request.
    pub tokens: &'a [u32],
    /// Position of each token in its request.
    pub positions: &'a [u32],
    /// Cache cell of each token in each group: `page · page_size + offset`.
    pub cells: &'a [u32],
    /// The requests. A token that is in none of their rows leaves its keys and values in its
    /// cell and attends to nothing: its row of the attention output is unspecified.
    pub rows: &'a [Row],
    /// Page tables, each [`Row::pages`] long: the pages of a request's positions in turn.
    /// Tables that no row names may lie between them. The tables of each group are equally
    /// long, and a row's table starts at [`Row::pages_start`] of each.
    pub pages: &'a [u32],
    /// Indices of tokens whose logits are wanted, ascending, none twice.
    pub logit_tokens: &'a [u32],
    /// Visibility among the new tokens of masked rows, such as trees of drafts:
    /// [`Row::mask_words`] words for each new token of the row in turn. Token `i` sees all
    /// `kv_len` cached tokens. It sees new token `j` exactly if bit `j % 64` of its word
    /// `j / 64` is set; its own bit is no exception. Example: token 2 of a tree, a child of the
    /// root, has word 0 = 0b101.
    ///
    /// The tokens that a query sees are attended in the order of the batch, as if they lay at
    /// consecutive positions from `kv_len` on. So where ancestors come before their
    /// descendants, a path of a tree has the bits of the same tokens in a chain. A window shows a
    /// query the last ones of these positions.
    pub masks: &'a [u64],
    /// State behind each row in the recurrent layers; empty for a model without such layers. A
    /// node of a masked row goes on from the state of its last ancestor: those that its mask
    /// shows, in the order of the batch.
    pub states: &'a [RowState],
    /// Nodes that rows replay, by their numbers in the rows of the pass that verified them.
    pub replays: &'a [u32],
    /// Copies of states that rows keep.
    pub keeps: &'a [StateKeep],
    /// Place of each row's adapter, `None` for a row of the model alone; empty if no row has an
    /// adapter.
    pub adapters: &'a [Option<u16>],
    /// The rules by which a device makes tokens of the wanted logits.
    pub choices: ChoiceBatch<'a>,
    /// The drafts of this batch that this rank's device makes: see [`crate::DeviceDrafter`].
    pub chain: Option<ChainBatch<'a>>,
    /// Shape of the drafts if another rank's device makes them and tells this one: see
    /// [`crate::DeviceDrafter::tell`].
    pub told: Option<DraftShape>,
}

/// Shape of the drafts that a device makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftShape {
    /// Each draft follows the one before.
    Chains,
    /// Drafts are nodes with parents.
    Trees,
}

impl<'a> Batch<'a> {
    /// Returns the page tables of group `group` of `groups`.
    pub fn tables(&self, group: usize, groups: usize) -> &'a [u32] {
        let each = self.pages.len() / groups;
        &self.pages[group * each..][..each]
    }
}

impl Batch<'_> {
    /// Returns the shape of the drafts that devices make, this rank's or another one's.
    pub fn draft_shape(&self) -> Option<DraftShape> {
        self.chain.as_ref().map(ChainBatch::shape).or(self.told)
    }

    /// Returns the size of the batch.
    pub fn key(&self) -> PassKey {
        let lengths = self.rows.iter().map(|row| row.q_len as usize);
        PassKey {
            requests: self.rows.len(),
            tokens: self.tokens.len(),
            max_q_len: lengths.max().unwrap_or(0),
        }
    }
}

/// Chains of drafts that the device has yet to draft. Their tokens in the batch are arbitrary;
/// the device overwrites them with the drafts.
#[derive(Debug, Clone, Copy)]
pub struct ChainBatch<'a> {
    /// The drafter's first pass. It has a row for each chain, and the logits of the row's last
    /// token are wanted. It has one group. That group's page tables equal the batch's
    /// tables for its first group, and have pages for all of a chain.
    pub first: &'a Batch<'a>,
    /// For each row of `first`, the index of its request in [`crate::ChoiceBatch::choices`]. A
    /// chain has [`crate::DraftedRow::nodes`] drafts; the longest chain comes first.
    pub requests: &'a [u32],
    /// For each token of the first pass, its row among the features kept by the target's last
    /// pass. The token goes on from these features. Empty for a draft that reads no features.
    pub sources: &'a [u32],
    /// For each row of `first`, the growth of its tree, the deepest first; empty if all are
    /// chains. See [`crate::DeviceTreeDrafter`].
    pub trees: &'a [TreeSize],
}

impl ChainBatch<'_> {
    /// Returns the shape of the drafts.
    pub fn shape(&self) -> DraftShape {
        match self.trees {
            [] => DraftShape::Chains,
            _ => DraftShape::Trees,
        }
    }

    /// Returns the depth of chain or tree number `row` of a batch.
    pub(crate) fn depth(&self, batch: &Batch<'_>, row: usize) -> usize {
        if let Some(tree) = self.trees.get(row) {
            return tree.steps as usize;
        }
        let request = self.requests.get(row).map(|request| *request as usize);
        let drafted = request.and_then(|request| batch.choices.drafted.get(request));
        drafted.map_or(0, |drafted| drafted.nodes as usize)
    }

    /// Returns the number of entries of the page table of row `row`. The table covers all
    /// tokens of a chain but the last, which is not kept, or all expanded nodes of a tree.
    pub fn pages(&self, batch: &Batch<'_>, row: usize, page_size: usize) -> usize {
        let own = &self.first.rows[row];
        let drafts = match self.trees.get(row) {
            Some(tree) => tree.expanded(),
            None => self.depth(batch, row).saturating_sub(1),
        };
        (own.kv_len as usize + own.q_len as usize + drafts).div_ceil(page_size)
    }
}

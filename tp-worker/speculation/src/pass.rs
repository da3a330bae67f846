//! A pass of a drafter.

use lockstep_backend::{Batch, Row};

use crate::PageTable;

/// A batch under construction, in buffers that are reused.
#[derive(Debug, Default)]
pub struct Pass {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    wanted: Vec<u32>,
    masks: Vec<u64>,
}

impl Pass {
    /// Makes room for so many rows and tokens without allocating later.
    pub fn new(requests: usize, tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            cells: Vec::with_capacity(tokens),
            rows: Vec::with_capacity(requests),
            wanted: Vec::with_capacity(tokens),
            masks: Vec::new(),
        }
    }

    /// Removes everything, keeping the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.cells.clear();
        self.rows.clear();
        self.wanted.clear();
        self.masks.clear();
    }

    /// Begins a row over `kv_len` cached positions.
    pub fn begin(&mut self, kv_len: usize, pages_start: u32) {
        self.rows.push(Row {
            start: self.tokens.len() as u32,
            q_len: 0,
            kv_len: kv_len as u32,
            pages_start,
            mask: None,
        });
    }

    /// Adds a token to the row begun last, at `position`. Its keys and values go to the cell of
    /// position `kept_at`. The two positions differ in trees.
    pub fn push(&mut self, pages: PageTable<'_>, token: u32, position: usize, kept_at: usize) {
        let Some(row) = self.rows.last_mut() else {
            return;
        };
        row.q_len += 1;
        self.tokens.push(token);
        self.positions.push(position as u32);
        self.cells.push(pages.cell(row.pages_start, kept_at as u32));
    }

    /// Adds tokens one after the other from `position` on, each kept in its own position's
    /// cell.
    pub fn push_chain(&mut self, pages: PageTable<'_>, tokens: &[u32], position: usize) {
        for (token, position) in tokens.iter().zip(position..) {
            self.push(pages, *token, position, position);
        }
    }

    /// Asks for the logits after the token pushed last.
    pub fn want(&mut self) {
        self.wanted.push(self.tokens.len() as u32 - 1);
    }

    /// Gives the row begun last a mask. `fill` appends its words: see [`Batch::masks`].
    pub fn mask(&mut self, fill: impl FnOnce(&mut Vec<u64>)) {
        if let Some(row) = self.rows.last_mut() {
            row.mask = Some(self.masks.len() as u32);
            fill(&mut self.masks);
        }
    }

    /// Returns the number of tokens so far.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if no token was added.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the indices of the tokens whose logits are wanted.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// Returns the batch over the page tables `pages`.
    pub fn batch<'a>(&'a self, pages: PageTable<'a>) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages: pages.entries,
            logit_tokens: &self.wanted,
            masks: &self.masks,
            ..Batch::default()
        }
    }
}

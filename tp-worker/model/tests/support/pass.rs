//! Batches made by hand, and the folders of the fixtures.

use std::path::PathBuf;

use lockstep_backend::{Batch, Row, RowState};

/// Returns the folder of a small model.
pub fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join("architectures").join(name)
}

/// A batch's arrays.
#[derive(Default)]
pub struct Pass {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub cells: Vec<u32>,
    pub rows: Vec<Row>,
    pub pages: Vec<u32>,
    pub masks: Vec<u64>,
    pub states: Vec<RowState>,
}

impl Pass {
    /// Adds the positions `range` of `text`, whose `n`-th page is `page(n)`.
    pub fn push(
        &mut self,
        text: &[u32],
        range: std::ops::Range<usize>,
        page_size: usize,
        page: impl Fn(usize) -> u32,
    ) {
        self.rows.push(Row {
            start: self.tokens.len() as u32,
            q_len: range.len() as u32,
            kv_len: range.start as u32,
            pages_start: self.pages.len() as u32,
            mask: None,
        });
        self.pages
            .extend((0..range.end.div_ceil(page_size)).map(&page));
        for position in range {
            self.tokens.push(text[position]);
            self.positions.push(position as u32);
            let cell = page(position / page_size) as usize * page_size + position % page_size;
            self.cells.push(cell as u32);
        }
    }

    /// Gives the last row the state `state`, in which all of its tokens stay.
    pub fn commit(&mut self, state: usize) {
        self.states.push(RowState {
            state: state as u32,
            records: state as u32,
            fresh: self.rows[self.states.len()].kv_len == 0,
            commits: true,
            ..RowState::default()
        });
    }

    pub fn batch<'a>(&'a self, logit_tokens: &'a [u32]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages: &self.pages,
            logit_tokens,
            masks: &self.masks,
            states: &self.states,
            ..Batch::default()
        }
    }
}

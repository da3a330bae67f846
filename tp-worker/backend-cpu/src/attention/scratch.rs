//! A thread's working memory.

use lockstep_backend::BackendError;

use super::cells::{BLOCK, Cells};
use super::panels::Panels;
use super::prefetch::Ahead;
use super::softmax::{LANES, State};
use super::visible::Visible;
use crate::gemm::{BLOCK_STEPS, PANEL};
use crate::memory::{Buffer, grown};

/// Working memory of one thread.
pub(crate) struct Scratch {
    /// Query rows in the tiles' format.
    pub queries: Buffer<u32>,
    /// Rows of one query.
    pub own_queries: Buffer<u32>,
    pub cells: Cells,
    pub ahead: Ahead,
    pub panels: Panels,
    pub tile: TileScratch,
    /// Sums of the current segment, and of all segments before it.
    pub segment: Sums,
    pub total: Sums,
}

/// Scores and weights of the rows of one tile, or of several heads with no more rows
/// together.
pub(crate) struct TileScratch {
    /// Positions of the block that each row sees.
    pub visible: [Visible; PANEL],
    pub scores: Buffer<[f32; BLOCK]>,
    /// Partial maxima and sums of each row.
    pub lanes: Buffer<[f32; LANES]>,
    /// Weights in the form that tiles read: row by row where weights are pairs or integers,
    /// and step by step.
    pub rows: Buffer<[u32; BLOCK]>,
    pub weights: Buffer<u32>,
    /// Value of the integer 1 among each row's weights.
    pub worth: [f32; PANEL],
}

/// Running softmax and weighted sums of a task's rows.
pub(crate) struct Sums {
    pub states: Vec<State>,
    /// `[rows][padded(head_dim)]`.
    pub acc: Buffer<f32>,
}

impl Sums {
    fn new() -> Self {
        Self {
            states: Vec::new(),
            acc: Buffer::empty(),
        }
    }

    /// Forgets the first `rows` rows of `width` columns.
    pub(crate) fn clear(&mut self, rows: usize, width: usize) {
        self.states[..rows].fill(State::EMPTY);
        self.acc[..rows * width].fill(0.0);
    }
}

/// Head columns rounded up to whole panels.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(PANEL)
}

/// Words that a packed query row takes at most.
fn query_words(head_dim: usize) -> usize {
    head_dim.next_multiple_of(BLOCK_STEPS)
}

/// Floats of a query row's partial result: its state and weighted sum.
pub(crate) fn partial_len(head_dim: usize) -> usize {
    2 + padded(head_dim)
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            queries: Buffer::empty(),
            own_queries: Buffer::empty(),
            cells: Cells::EMPTY,
            ahead: Ahead::EMPTY,
            panels: Panels::new(),
            tile: TileScratch {
                visible: [Visible::NOTHING; PANEL],
                scores: Buffer::empty(),
                lanes: Buffer::empty(),
                rows: Buffer::empty(),
                weights: Buffer::empty(),
                worth: [0.0; PANEL],
            },
            segment: Sums::new(),
            total: Sums::new(),
        }
    }

    /// Returns the bytes of a scratch that has grown ([`Self::grow`]) for each of these numbers of
    /// rows and widths of heads.
    pub(crate) fn bytes(tasks: impl Iterator<Item = (usize, usize)>) -> usize {
        // A buffer grows to the most that any of them needs.
        let (mut queries, mut sums, mut states, mut panels) = (0, 0, 0, 0);
        for (rows, head_dim) in tasks {
            queries = queries.max(2 * grown(rows * query_words(head_dim)));
            sums = sums.max(2 * grown(rows * padded(head_dim)));
            states = states.max(2 * rows * size_of::<State>());
            panels = panels.max(Panels::bytes(head_dim));
        }
        let tile = grown(PANEL) * (3 * BLOCK + LANES);
        4 * (queries + sums + tile) + states + panels
    }

    /// Bytes that the scratch has now.
    pub(crate) fn held(&self) -> usize {
        let tile = &self.tile;
        let rows = tile.scores.bytes() + tile.lanes.bytes() + tile.rows.bytes();
        let sums = [&self.segment, &self.total]
            .map(|sums| sums.acc.bytes() + size_of_val(sums.states.as_slice()));
        let queries = self.queries.bytes() + self.own_queries.bytes();
        let sums: usize = sums.into_iter().sum();
        queries + sums + rows + tile.weights.bytes() + self.panels.held()
    }

    /// Makes room for tasks of `rows` query rows.
    pub(crate) fn grow(&mut self, rows: usize, head_dim: usize) -> Result<(), BackendError> {
        const WHAT: &str = "attention scratch";
        self.queries.grow(rows * query_words(head_dim), WHAT)?;
        self.own_queries.grow(rows * query_words(head_dim), WHAT)?;
        self.panels.grow(head_dim)?;
        // No tile is higher than a panel is wide.
        self.tile.scores.grow(PANEL, WHAT)?;
        self.tile.lanes.grow(PANEL, WHAT)?;
        self.tile.rows.grow(PANEL, WHAT)?;
        self.tile.weights.grow(PANEL * BLOCK, WHAT)?;
        for sums in [&mut self.segment, &mut self.total] {
            if sums.states.len() < rows {
                sums.states.resize(rows, State::EMPTY);
            }
            sums.acc.grow(rows * padded(head_dim), WHAT)?;
        }
        Ok(())
    }
}

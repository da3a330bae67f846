//! A block of positions under all key heads of a task of few query rows.
//!
//! Heads do each kind of work together: scores of all heads, then their softmax, then their
//! weighted sums. So the keys of neighbouring heads, which lie side by side, are read in one
//! go, and so are their values.

use std::ops::Range;

use crate::attention::call::{Call, View};
use crate::attention::cells::BLOCK;
use crate::attention::prefetch::Asking;
use crate::attention::scratch::{Scratch, padded};
use crate::attention::softmax::{Rows, softmax_blocks};
use crate::attention::tiled::Tiled;
use crate::attention::visible::Visible;
use crate::gemm::PANEL;

/// Rows that the scores and weights of a tile's scratch have room for.
const ROOM: usize = PANEL;

/// A block of positions of one task, and the kernels that attend to it.
struct Block<'a> {
    tiled: &'a Tiled,
    view: &'a View<'a>,
    positions: Range<usize>,
}

/// A key head: its number in the task, and its number among the heads that the tile's
/// scratch has room for at a time.
#[derive(Clone, Copy)]
struct Head {
    index: usize,
    place: usize,
}

impl Call<'_> {
    /// The kernels for a task with heads that go through blocks together; `None` for other
    /// tasks.
    pub(super) fn takes_heads_together(&self, view: &View<'_>) -> Option<&'static Tiled> {
        let few = view.row.mask.is_none() && self.is_few(view.rows);
        self.tiled.filter(|_| few)
    }

    /// Attends to `positions`, a block of them, under all key heads of the task.
    pub(super) fn heads(
        &self,
        tiled: &Tiled,
        view: &View<'_>,
        positions: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let Scratch { panels, tile, .. } = &mut *scratch;
        // Tiles read caches without scales of their own.
        panels.key_scales.fill(self.score_scale());
        let (sight, first) = (self.sight(view), view.task.queries.start);
        for (row, visible) in tile.visible[..view.rows].iter_mut().enumerate() {
            *visible = Visible::of(&sight.of(first + row / self.group()), &positions);
        }
        let block = &Block {
            tiled,
            view,
            positions,
        };
        let heads = view.task.heads.len();
        for from in (0..heads).step_by(ROOM / view.rows) {
            let heads = from..heads.min(from + ROOM / view.rows);
            let heads = heads
                .enumerate()
                .map(|(place, index)| Head { index, place });
            for head in heads.clone() {
                self.head_scores(block, head, scratch);
            }
            for head in heads.clone() {
                self.head_softmax(block, head, scratch);
            }
            for head in heads {
                self.head_sums(block, head, scratch);
            }
        }
    }

    /// Points `scratch.cells` at the block under a head.
    fn look_at_block(&self, block: &Block<'_>, head: Head, scratch: &mut Scratch) {
        let (view, positions) = (block.view, block.positions.clone());
        let head = view.task.heads.start + head.index;
        self.look_at(view, head, positions, &mut scratch.cells);
    }

    /// Computes a head's scores.
    fn head_scores(&self, block: &Block<'_>, head: Head, scratch: &mut Scratch) {
        self.look_at_block(block, head, scratch);
        let view = block.view;
        let mut source = self.source(scratch.cells.rows(), Asking::NOTHING);
        let queries = scratch.queries[self.packed_at(view, head.index)..].as_ptr();
        let room = scratch.panels.keys.as_mut_ptr().cast();
        let scores = scratch.tile.scores[head.place * view.rows..].as_mut_ptr();
        // SAFETY: the kernels were chosen for this machine and cache; cells hold
        // rows of the cache, panels a block, queries a tile, and scores the rows.
        unsafe { (block.tiled.few_scores)(&mut source, queries, view.rows, room, scores) };
    }

    /// Turns a head's scores into weights.
    fn head_softmax(&self, block: &Block<'_>, head: Head, scratch: &mut Scratch) {
        let (view, Head { index, place }) = (block.view, head);
        let Scratch {
            panels,
            tile,
            segment,
            ..
        } = scratch;
        let (rows, width) = (view.rows, padded(self.shape.head_dim));
        let slots = index * view.apart..index * view.apart + rows;
        let scores = &mut tile.scores[place * rows..(place + 1) * rows];
        self.cap(panels, scores);
        let softmax = Rows {
            scores,
            visible: &tile.visible[..rows],
            scales: self.factors(panels),
            states: &mut segment.states[slots.clone()],
            acc: &mut segment.acc[slots.start * width..slots.end * width],
            asking: Asking::NOTHING,
        };
        let weights = &mut tile.weights[place * rows * BLOCK / 2..];
        softmax_blocks(self.isa, softmax, None, &mut tile.lanes, weights, rows);
    }

    /// Adds a head's weights times its values.
    fn head_sums(&self, block: &Block<'_>, head: Head, scratch: &mut Scratch) {
        self.look_at_block(block, head, scratch);
        let (view, tiled, Head { index, place }) = (block.view, block.tiled, head);
        let (rows, width) = (view.rows, padded(self.shape.head_dim));
        let values = scratch.panels.values.as_mut_ptr();
        let weights = scratch.tile.weights[place * rows * BLOCK / 2..].as_ptr();
        let acc = scratch.segment.acc[index * view.apart * width..].as_mut_ptr();
        // SAFETY: as above; weights and sums hold the rows.
        unsafe {
            (tiled.weave)(self.cache, scratch.cells.rows(), values, Asking::NOTHING);
            (tiled.few_sums)(weights, values, block.positions.len(), rows, acc, width);
        }
    }
}

//! A block of positions under all key heads of a task of few query rows.
//!
//! Heads do each kind of work together: scores of all, their softmax, their
//! weighted sums. So the keys of neighbouring heads, which lie side by side, are
//! read in one go, and so are their values; and nothing waits for what its own
//! head has just written.

use std::ops::Range;

use super::{Call, View};
use crate::attention::ahead::Asking;
use crate::attention::cells::BLOCK;
use crate::attention::scratch::{Scratch, padded};
use crate::attention::softmax::{Rows, softmax_blocks};
use crate::attention::tiled::Tiled;
use crate::gemm::PANEL;

/// Rows that the scores and weights of a tile's scratch have room for.
const ROOM: usize = PANEL;

impl Call<'_> {
    /// The kernels for it, where a task's heads go through blocks together.
    pub(super) fn takes_heads_together(&self, view: &View<'_>) -> Option<&'static Tiled> {
        let few = view.row.mask.is_none() && self.is_few(view.rows);
        self.tiled.filter(|_| few)
    }

    /// Attends to the positions `block` under all key heads of the task.
    pub(super) fn heads(
        &self,
        tiled: &Tiled,
        view: &View<'_>,
        block: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let Scratch { panels, tile, .. } = &mut *scratch;
        // Tiles read caches without scales of their own.
        panels.key_scales.fill(self.score_scale());
        let first = view.row.kv_len as usize + view.task.queries.start;
        for (row, visible) in tile.visible[..view.rows].iter_mut().enumerate() {
            let seen = (first + row / self.group() + 1).saturating_sub(block.start);
            *visible = seen.min(block.len());
        }
        let heads = view.task.heads.len();
        for from in (0..heads).step_by(ROOM / view.rows) {
            let heads = from..heads.min(from + ROOM / view.rows);
            for (place, index) in heads.clone().enumerate() {
                self.head_scores(tiled, view, (index, place), &block, scratch);
            }
            for (place, index) in heads.clone().enumerate() {
                self.head_softmax(view, (index, place), scratch);
            }
            for (place, index) in heads.enumerate() {
                self.head_sums(tiled, view, (index, place), &block, scratch);
            }
        }
    }

    /// Points `scratch.cells` at the block under the task's key head number `index`.
    fn look_at(&self, view: &View<'_>, index: usize, block: &Range<usize>, scratch: &mut Scratch) {
        let plane = self.cache.keys(self.layer, view.task.heads.start + index);
        scratch.cells.clear();
        scratch.cells.extend(&plane, view.pages, block.clone());
    }

    /// Computes the scores of key head number `index`, in number `place` of the heads
    /// that the tile's scratch has room for.
    fn head_scores(
        &self,
        tiled: &Tiled,
        view: &View<'_>,
        (index, place): (usize, usize),
        block: &Range<usize>,
        scratch: &mut Scratch,
    ) {
        self.look_at(view, index, block, scratch);
        let mut source = self.source(scratch.cells.rows(), Asking::NOTHING);
        let queries = scratch.queries[self.packed_at(view, index)..].as_ptr();
        let room = scratch.panels.keys.as_mut_ptr().cast();
        let scores = scratch.tile.scores[place * view.rows..].as_mut_ptr();
        // SAFETY: the kernels were chosen for this machine and cache; cells hold
        // rows of the cache, panels a block, queries a tile, and scores the rows.
        unsafe { (tiled.few_scores)(&mut source, queries, view.rows, room, scores) };
    }

    /// Turns a head's scores into weights.
    fn head_softmax(&self, view: &View<'_>, (index, place): (usize, usize), scratch: &mut Scratch) {
        let Scratch {
            panels,
            tile,
            segment,
            ..
        } = scratch;
        let (rows, width) = (view.rows, padded(self.shape.head_dim));
        let slots = index * view.apart..index * view.apart + rows;
        let softmax = Rows {
            scores: &mut tile.scores[place * rows..(place + 1) * rows],
            visible: &tile.visible[..rows],
            scales: &panels.key_scales,
            states: &mut segment.states[slots.clone()],
            acc: &mut segment.acc[slots.start * width..slots.end * width],
            asking: Asking::NOTHING,
        };
        let weights = &mut tile.weights[place * rows * BLOCK / 2..];
        softmax_blocks(self.isa, softmax, None, &mut tile.lanes, weights, rows);
    }

    /// Adds a head's weights times its values.
    fn head_sums(
        &self,
        tiled: &Tiled,
        view: &View<'_>,
        (index, place): (usize, usize),
        block: &Range<usize>,
        scratch: &mut Scratch,
    ) {
        self.look_at(view, index, block, scratch);
        let (rows, width) = (view.rows, padded(self.shape.head_dim));
        let values = scratch.panels.values.as_mut_ptr();
        let weights = scratch.tile.weights[place * rows * BLOCK / 2..].as_ptr();
        let acc = scratch.segment.acc[index * view.apart * width..].as_mut_ptr();
        // SAFETY: as above; weights and sums hold the rows.
        unsafe {
            (tiled.weave)(self.cache, scratch.cells.rows(), values, Asking::NOTHING);
            (tiled.few_sums)(weights, values, block.len(), rows, acc, width);
        }
    }
}

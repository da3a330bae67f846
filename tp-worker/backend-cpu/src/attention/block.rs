//! Query rows against one packed block of positions.

use std::ops::Range;

use super::ahead::Ahead as NextBlock;
use super::cells::BLOCK;
use super::direct::{Direct, Source};
use super::panels::Panels;
use super::scratch::{Scratch, TileScratch, padded};
use super::softmax::{Scales, softmax_rows};
use super::task::{Call, View};
use super::transpose::{LANES, transpose};
use crate::gemm::{Ahead, Input, PANEL, Tile};
use crate::number::to_pairs;

/// Positions asked for at a time; a block of one tile asks at about eight points.
const FETCH: usize = 8;

/// Which packed query rows a block is attended with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Queries {
    /// All of the task, in blocks of the tile's height.
    Task,
    /// Those of one query.
    Own,
}

impl Call<'_> {
    /// Attends `rows` of the task, packed as `queries`, to the block at
    /// `scratch.cells`, of which `visible` says how many positions a row sees;
    /// it never falls from row to row.
    pub(super) fn attend(
        &self,
        view: &View<'_>,
        rows: Range<usize>,
        queries: Queries,
        scratch: &mut Scratch,
        visible: impl Fn(usize) -> usize,
    ) {
        let scale = self.shape.scale * std::f32::consts::LOG2_E;
        let Scratch {
            panels,
            cells,
            ahead,
            ..
        } = &mut *scratch;
        panels.load_scales(self.cache, cells, scale);
        let few = self
            .direct
            .filter(|direct| view.rows <= direct.scores.len());
        if few.is_none() {
            ahead.fetch(self.cache, FETCH);
            panels.pack_keys(self.isa, self.element, self.cache, cells);
        }
        if self.direct.is_none() {
            ahead.fetch(self.cache, FETCH);
            panels.pack_values(self.isa, self.element, self.cache, cells);
        }
        let count = cells.len();
        let row_len = self.tiles.input.len(self.shape.head_dim);
        for first in rows.clone().step_by(self.tiles.rows()) {
            let last = rows.end.min(first + self.tiles.rows());
            for (slot, row) in scratch.tile.visible.iter_mut().zip(first..last) {
                *slot = visible(row).min(count);
            }
            if scratch.tile.visible[last - first - 1] > 0 {
                let packed = (first - rows.start) * row_len..(last - rows.start) * row_len;
                self.tile(first..last, queries, packed, few, scratch);
            }
        }
    }

    /// One tile of query rows.
    fn tile(
        &self,
        rows: Range<usize>,
        queries: Queries,
        packed: Range<usize>,
        few: Option<&Direct>,
        scratch: &mut Scratch,
    ) {
        let width = padded(self.shape.head_dim);
        let Scratch {
            queries: of_task,
            own_queries,
            cells,
            panels,
            tile,
            ahead,
            segment,
            ..
        } = scratch;
        let queries = match queries {
            Queries::Task => &of_task[packed],
            Queries::Own => &own_queries[packed],
        };
        let seen = tile.visible[rows.len() - 1];
        let acc = &mut segment.acc[rows.start * width..rows.end * width];
        let states = &mut segment.states[rows.clone()];
        let rows = rows.len();
        let block = &cells.rows()[..seen];
        if let Some(direct) = few {
            let source = self.source(block, ahead.cells.rows());
            let scores = tile.scores[..rows].as_mut_ptr();
            // SAFETY: the kernels were chosen for this machine and cache; cells
            // hold rows of the cache; queries and scores hold `rows` rows.
            unsafe { direct.scores[rows - 1](&source, queries.as_ptr(), scores) };
        } else {
            self.scores(queries, panels, seen, &mut tile.scores[..rows]);
            ahead.fetch(self.cache, 2 * FETCH);
        }
        let scales = Scales {
            scores: &panels.key_scales,
            weights: self.cache.has_scales().then_some(&panels.value_scales),
            round: self.tiles.input == Input::Rounded,
        };
        let (scores, visible) = (&mut tile.scores[..rows], &tile.visible[..rows]);
        softmax_rows(
            self.isa,
            scores,
            visible,
            &scales,
            states,
            acc,
            &mut tile.lanes,
        );
        self.sums(block, few.is_some(), ahead, panels, tile, acc);
    }

    /// Adds weights, which are in place of the scores, times the values of
    /// `block` to `acc`.
    fn sums(
        &self,
        block: &[usize],
        few: bool,
        ahead: &mut NextBlock,
        panels: &Panels,
        tile: &mut TileScratch,
        acc: &mut [f32],
    ) {
        let width = padded(self.shape.head_dim);
        let rows = acc.len() / width;
        let weights = self.weight_inputs(&mut tile.rows, &tile.scores[..rows]);
        let Some(direct) = self.direct else {
            ahead.fetch(self.cache, FETCH);
            self.turn_weights(weights, &mut tile.weights, block.len());
            ahead.fetch(self.cache, FETCH);
            return self.accumulate(&tile.weights, panels, block.len(), rows, acc);
        };
        if few {
            ahead.skip(block.len());
        }
        let next = if few { ahead.cells.rows() } else { &[] };
        let source = self.source(block, next);
        // SAFETY: the kernels were chosen for this machine and cache; cells hold
        // rows of the cache; weights and `acc` have `rows` rows, these of `width`.
        unsafe { direct.sums[rows - 1](&source, weights.as_ptr(), acc.as_mut_ptr(), width) };
    }

    /// What the direct kernels read.
    fn source<'a>(&self, rows: &'a [usize], next: &'a [usize]) -> Source<'a> {
        let (data, row_bytes) = self.cache.bytes();
        Source {
            data,
            row_bytes,
            head_dim: self.shape.head_dim,
            rows,
            next,
            values_after: self.cache.values_after(),
        }
    }

    /// Query rows times keys, for the first `count` positions.
    fn scores(&self, queries: &[u32], panels: &Panels, count: usize, scores: &mut [[f32; BLOCK]]) {
        let steps = self.element.steps(self.shape.head_dim);
        let tile = self.tiles.single[scores.len() - 1];
        let scores = scores.as_flattened_mut();
        for panel in 0..count.div_ceil(PANEL) {
            let keys = &panels.keys[panel * steps * PANEL..(panel + 1) * steps * PANEL];
            let work = Tile {
                a: queries.as_ptr(),
                b: keys.as_ptr(),
                panel_stride: 0,
                steps,
                c: scores[panel * PANEL..].as_mut_ptr(),
                ldc: BLOCK,
                resume: false,
                ahead: Ahead::NOTHING.or(keys.as_ptr()),
            };
            // SAFETY: `tile` suits this machine and as many rows as `scores`
            // has, whose columns `panel` covers; `queries` holds those rows.
            unsafe { tile(&work) };
        }
    }

    /// Weights in the tiles' type, row by row.
    fn weight_inputs<'a>(
        &self,
        pairs: &'a mut [[u32; BLOCK]],
        weights: &'a [[f32; BLOCK]],
    ) -> &'a [[u32; BLOCK]] {
        if self.tiles.input != Input::Pairs {
            return bytemuck::cast_slice(weights);
        }
        for (weights, pairs) in weights.iter().zip(&mut *pairs) {
            to_pairs(self.isa, weights, pairs);
        }
        &pairs[..weights.len()]
    }

    /// Brings the first `count` weights of each row into the tiles' order.
    fn turn_weights(&self, rows: &[[u32; BLOCK]], out: &mut [u32], count: usize) {
        let steps = self.tiles.input.len(count);
        for (group, lanes) in rows.chunks(LANES).enumerate() {
            let mut from = [lanes[0].as_ptr(); LANES];
            for (from, row) in from.iter_mut().zip(lanes) {
                *from = row.as_ptr();
            }
            let to = out[group * LANES..rows.len() * steps].as_mut_ptr();
            // SAFETY: a backend is built only for instruction sets this machine
            // runs; rows hold 64 elements, and `out` holds all rows for each step.
            unsafe { transpose(self.isa, &from, lanes.len(), steps, to, rows.len()) };
        }
    }

    /// Adds weights times values of the first `count` positions to `acc`.
    fn accumulate(
        &self,
        weights: &[u32],
        panels: &Panels,
        count: usize,
        rows: usize,
        acc: &mut [f32],
    ) {
        let width = padded(self.shape.head_dim);
        let panel_len = self.element.steps(BLOCK) * PANEL;
        let tile = self.tiles.single[rows - 1];
        for panel in 0..width / PANEL {
            let values = &panels.values[panel * panel_len..(panel + 1) * panel_len];
            let work = Tile {
                a: weights.as_ptr(),
                b: values.as_ptr(),
                panel_stride: 0,
                steps: self.element.steps(count),
                c: acc[panel * PANEL..].as_mut_ptr(),
                ldc: width,
                resume: true,
                ahead: Ahead::NOTHING.or(values.as_ptr()),
            };
            // SAFETY: `tile` suits this machine and `rows` rows, as many as
            // `weights` and `acc` hold; `panel` lies within their columns.
            unsafe { tile(&work) };
        }
    }
}

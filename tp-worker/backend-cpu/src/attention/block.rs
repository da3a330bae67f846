//! Query rows against one packed block of positions.

use std::ops::Range;

use super::cells::BLOCK;
use super::panels::Panels;
use super::scratch::{Scratch, TileScratch, padded};
use super::softmax::{Scales, softmax_rows};
use super::task::Call;
use super::transpose::{LANES, transpose};
use crate::gemm::{Ahead, Input, PANEL, Tile};
use crate::number::{to_pairs, to_rounded};

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
    /// Packs the block at `scratch.cells`.
    pub(super) fn pack_block(&self, scratch: &mut Scratch) {
        let Scratch {
            panels,
            cells,
            ahead,
            ..
        } = scratch;
        ahead.fetch(self.cache, FETCH);
        panels.pack_keys(self.isa, self.element, self.cache, cells);
        ahead.fetch(self.cache, FETCH);
        panels.pack_values(self.isa, self.element, self.cache, cells);
        let scale = self.shape.scale * std::f32::consts::LOG2_E;
        if self.cache.has_scales() {
            let scales = panels.key_scales.iter_mut().take(cells.len());
            scales.for_each(|slot| *slot *= scale);
        } else {
            panels.key_scales.fill(scale);
        }
    }

    /// Attends `rows` of the task, packed as `queries`, to the packed block, of
    /// which `visible` says how many positions a row sees; it never falls from
    /// row to row.
    pub(super) fn rows(
        &self,
        rows: Range<usize>,
        queries: Queries,
        scratch: &mut Scratch,
        visible: impl Fn(usize) -> usize,
    ) {
        let count = scratch.cells.len();
        let row_len = self.tiles.input.len(self.shape.head_dim);
        for first in rows.clone().step_by(self.tiles.rows()) {
            let last = rows.end.min(first + self.tiles.rows());
            for (slot, row) in scratch.tile.visible.iter_mut().zip(first..last) {
                *slot = visible(row).min(count);
            }
            if scratch.tile.visible[last - first - 1] > 0 {
                let packed = (first - rows.start) * row_len..(last - rows.start) * row_len;
                self.tile(first..last, queries, packed, scratch);
            }
        }
    }

    /// One tile of query rows.
    fn tile(
        &self,
        rows: Range<usize>,
        queries: Queries,
        packed: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let width = padded(self.shape.head_dim);
        let Scratch {
            queries: of_task,
            own_queries,
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
        let scores = &mut tile.scores[..rows.len()];
        self.scores(queries, panels, seen, scores);
        ahead.fetch(self.cache, 2 * FETCH);
        let acc = &mut segment.acc[rows.start * width..rows.end * width];
        let scales = Scales {
            scores: &panels.key_scales,
            weights: self.cache.has_scales().then_some(&panels.value_scales),
        };
        let states = &mut segment.states[rows.clone()];
        let visible = &tile.visible[..rows.len()];
        softmax_rows(
            self.isa,
            scores,
            visible,
            &scales,
            states,
            acc,
            &mut tile.lanes,
        );
        ahead.fetch(self.cache, FETCH);
        self.pack_weights(tile, rows.len(), seen);
        ahead.fetch(self.cache, FETCH);
        self.accumulate(&tile.weights, panels, seen, rows.len(), acc);
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

    /// Brings the first `count` weights of each row into the tiles' format.
    fn pack_weights(&self, tile: &mut TileScratch, rows: usize, count: usize) {
        let input = self.tiles.input;
        let weights = tile.scores[..rows].iter().zip(&mut tile.rows);
        for (scores, packed) in weights {
            match input {
                Input::Rounded => to_rounded(self.isa, scores, packed),
                Input::Pairs => to_pairs(self.isa, scores, packed),
                // Scores are f32 or bf16; there is no other element here.
                _ => *packed = scores.map(f32::to_bits),
            }
        }
        let steps = input.len(count);
        for (group, lanes) in tile.rows[..rows].chunks(LANES).enumerate() {
            let mut from = [lanes[0].as_ptr(); LANES];
            for (from, row) in from.iter_mut().zip(lanes) {
                *from = row.as_ptr();
            }
            let to = tile.weights[group * LANES..rows * steps].as_mut_ptr();
            // SAFETY: a backend is built only for instruction sets this machine
            // runs; rows hold 64 elements, and `weights` holds `rows` for each step.
            unsafe { transpose(self.isa, &from, lanes.len(), steps, to, rows) };
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

//! Attention of query rows to one packed block of positions.

mod integers;
mod tiled;

use std::ops::Range;

use super::call::Call;
use super::cells::BLOCK;
use super::direct::Source;
use super::panels::Panels;
use super::prefetch::{Ahead as NextBlock, Asking};
use super::scratch::{Scratch, TileScratch, padded};
use super::softmax::{Finish, Rows, State, softmax_blocks, softmax_pairs, softmax_rows};
use super::tiled::Height;
use super::transpose::{LANES, transpose};
use super::visible::Visible;

use crate::activation::cap_scaled_row;
use crate::gemm::{Ahead, Input, Layout, PANEL, Tile};

/// Rows asked for at a time; a block of one tile asks at about eight points.
const FETCH: usize = 16;

/// Rows asked for during scores, softmax and sums while few rows are attended, keys before
/// values. The numbers are in proportion to how long each takes, so that memory is never
/// without work.
const DURING: [usize; 3] = [48, 32, 48];

/// The packed query rows that a block is attended with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Queries {
    /// All rows of the task under one key head, in blocks of the tile's height, packed from
    /// this word on.
    Task(usize),
    /// The rows of one query.
    Own,
}

/// A tile of query rows and a block, for kernels with a softmax of their own.
struct KernelTile<'a> {
    queries: &'a [u32],
    height: Height,
    /// True if queries are packed for few rows.
    few: bool,
    /// Rows of the cache up to the last position that is seen.
    block: &'a [usize],
    ahead: &'a mut NextBlock,
    /// The packed keys and values of the block.
    panels: &'a mut Panels,
    tile: &'a mut TileScratch,
    states: &'a mut [State],
    /// Sums from the first row's on, with at least as many rows as the height says.
    acc: &'a mut [f32],
}

impl Queries {
    /// Height of a tile of `rows` rows, packed or summed: padded for a task's rows, exact
    /// for the rows of one query.
    pub(super) fn height(self, rows: usize) -> Height {
        match self {
            Self::Task(_) => Height::Padded(rows),
            // Sums of other queries follow.
            Self::Own => Height::Exact(rows),
        }
    }
}

impl Call<'_> {
    /// Attends `rows` of the task, packed as `queries`, to the block at `scratch.cells`. A
    /// row sees the positions `visible(row)` of the block.
    pub(super) fn attend(
        &self,
        rows: Range<usize>,
        queries: Queries,
        scratch: &mut Scratch,
        visible: impl Fn(usize) -> Visible,
    ) {
        let Scratch {
            panels,
            cells,
            ahead,
            ..
        } = &mut *scratch;
        panels.load_scales(self.cache, cells, self.score_scale());
        let few = self.is_few(rows.len());
        if few && self.tiled.is_some() {
            ahead.skip();
        }
        if let Some(integers) = self.integers.filter(|_| !few) {
            let (keys, values) = (panels.keys.as_mut_ptr(), panels.values.as_mut_ptr());
            // SAFETY: the kernels were chosen for this machine and cache; cells
            // hold rows of the cache, and panels hold a block of wider elements.
            unsafe {
                (integers.pack_keys)(self.cache, cells.rows(), keys, ahead);
                (integers.pack_values)(self.cache, cells.rows(), values, ahead);
            }
        } else if !few && self.integers.is_none() {
            ahead.fetch(self.cache, FETCH);
            panels.pack_keys(self.isa, self.element, self.cache, cells);
        }
        if let Some(tiled) = self.tiled {
            let asking = ahead.hand_out(self.cache, FETCH);
            // SAFETY: the kernels were chosen for this machine and cache; cells
            // hold rows of the cache, and panels hold a block.
            unsafe {
                (tiled.weave)(self.cache, cells.rows(), panels.values.as_mut_ptr(), asking);
            }
        } else if self.direct.is_none() && self.integers.is_none() {
            ahead.fetch(self.cache, FETCH);
            panels.pack_values(self.isa, self.element, self.cache, cells);
        }
        let row_len = self.query_words();
        for first in rows.clone().step_by(self.tiles.rows()) {
            let last = rows.end.min(first + self.tiles.rows());
            let mut seen = 0;
            for (slot, row) in scratch.tile.visible.iter_mut().zip(first..last) {
                *slot = visible(row);
                seen = seen.max(slot.end);
            }
            if seen > 0 {
                let packed = (first - rows.start) * row_len;
                self.tile(first..last, seen, queries, packed, few, scratch);
            }
        }
    }

    /// Factor of scores before they become exponents of two.
    pub(super) fn score_scale(&self) -> f32 {
        self.shape.scale * std::f32::consts::LOG2_E
    }

    /// Attends one tile of query rows to the first `seen` positions of a block.
    fn tile(
        &self,
        rows: Range<usize>,
        seen: usize,
        queries: Queries,
        packed: usize,
        few: bool,
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
        let height = queries.height(rows.len());
        let queries = match queries {
            Queries::Task(first) => &of_task[first + packed..],
            Queries::Own => &own_queries[packed..],
        };
        let acc = &mut segment.acc[rows.start * width..];
        let states = &mut segment.states[rows.clone()];
        let rows = rows.len();
        let block = &cells.rows()[..seen];
        if self.tiled.is_some() || self.integers.is_some() {
            let of = KernelTile {
                queries,
                height,
                few,
                block,
                ahead,
                panels,
                tile,
                states,
                acc,
            };
            return self.kernel_tile(of);
        }
        let acc = &mut acc[..rows * width];
        let during = if few { DURING } else { [0; 3] };
        if let Some(direct) = self.direct.filter(|_| few) {
            let mut source = self.source(block, ahead.hand_out(self.cache, during[0]));
            let scores = tile.scores[..rows].as_mut_ptr();
            // SAFETY: the kernels were chosen for this machine and cache; cells
            // hold rows of the cache; queries and scores hold `rows` rows.
            unsafe { direct.scores[rows - 1](&mut source, queries.as_ptr(), scores) };
        } else {
            self.scores(queries, panels, seen, &mut tile.scores[..rows]);
            ahead.fetch(self.cache, 2 * FETCH);
        }
        self.cap(panels, &mut tile.scores[..rows]);
        let asking = ahead.hand_out(self.cache, during[1]);
        self.softmax(panels, tile, states, acc, asking);
        self.sums(block, during[2], ahead, panels, tile, acc);
    }

    /// Bounds raw scores where the layer has a softcap. They are then whole scores, and the
    /// softmax takes them as they are: see [`Self::factors`].
    pub(super) fn cap(&self, panels: &Panels, scores: &mut [[f32; BLOCK]]) {
        if let Some(cap) = self.shape.softcap {
            let cap = cap * std::f32::consts::LOG2_E;
            for row in scores {
                cap_scaled_row(self.isa, row, &panels.key_scales, cap);
            }
        }
    }

    /// Returns the factors that the softmax multiplies scores with.
    pub(super) fn factors<'p>(&self, panels: &'p Panels) -> &'p [f32; BLOCK] {
        const WHOLE: [f32; BLOCK] = [1.0; BLOCK];
        match self.shape.softcap {
            None => &panels.key_scales,
            Some(_) => &WHOLE,
        }
    }

    /// Attends one tile with kernels that have scores, softmax and sums of their own.
    fn kernel_tile(&self, of: KernelTile<'_>) {
        if let Some(integers) = self.integers {
            self.integer_tile(integers, of);
        } else if let Some(tiled) = self.tiled {
            self.tiled_tile(tiled, of);
        }
    }

    /// Turns scores into weights: pairs of bf16 in a separate buffer, other weights in
    /// place.
    fn softmax(
        &self,
        panels: &Panels,
        tile: &mut TileScratch,
        states: &mut [State],
        acc: &mut [f32],
        asking: Asking<'_>,
    ) {
        let rows = states.len();
        let softmax = Rows {
            scores: &mut tile.scores[..rows],
            visible: &tile.visible[..rows],
            scales: self.factors(panels),
            states,
            acc,
            asking,
        };
        let scales = self.cache.has_scales().then_some(&panels.value_scales);
        match self.tiles.input {
            Input::Blocks => {
                let out = &mut tile.weights;
                softmax_blocks(self.isa, softmax, scales, &mut tile.lanes, out, rows);
            }
            Input::Pairs => {
                let out = &mut tile.rows[..rows];
                softmax_pairs(self.isa, softmax, scales, &mut tile.lanes, out);
            }
            input => {
                let round = input == Input::Rounded;
                let finish = Finish { scales, round };
                softmax_rows(self.isa, softmax, &finish, &mut tile.lanes);
            }
        }
    }

    /// Adds weights times the values of `block` to `acc`. The weights are the ones that
    /// [`Self::softmax`] has left.
    fn sums(
        &self,
        block: &[usize],
        during: usize,
        ahead: &mut NextBlock,
        panels: &Panels,
        tile: &mut TileScratch,
        acc: &mut [f32],
    ) {
        let width = padded(self.shape.head_dim);
        let rows = acc.len() / width;
        let weights = match self.tiles.input {
            Input::Pairs => &tile.rows[..rows],
            _ => bytemuck::cast_slice(&tile.scores[..rows]),
        };
        let Some(direct) = self.direct else {
            ahead.fetch(self.cache, FETCH);
            // The softmax for blocks leaves weights in the tiles' order.
            if self.tiles.input != Input::Blocks {
                self.turn_weights(weights, &mut tile.weights, block.len());
            }
            ahead.fetch(self.cache, FETCH);
            return self.accumulate(&tile.weights, panels, block.len(), rows, acc);
        };
        let mut source = self.source(block, ahead.hand_out(self.cache, during));
        // SAFETY: the kernels were chosen for this machine and cache; cells hold
        // rows of the cache; weights and `acc` have `rows` rows, these of `width`.
        unsafe { direct.sums[rows - 1](&mut source, weights.as_ptr(), acc.as_mut_ptr(), width) };
    }

    /// The block and the rows to ask for, in the form that direct kernels read.
    pub(super) fn source<'a>(&self, rows: &'a [usize], asking: Asking<'a>) -> Source<'a> {
        let (data, row_bytes) = self.cache.bytes();
        Source {
            data,
            row_bytes,
            head_dim: self.shape.head_dim,
            rows,
            asking,
            values_after: self.cache.values_after(),
            #[cfg(target_arch = "x86_64")]
            all_rows: self.cache.rows(),
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
                scales: 1,
                layout: &Layout::NONE,
                c: scores[panel * PANEL..].as_mut_ptr(),
                ldc: BLOCK,
                resume: false,
                ahead: Ahead::NOTHING.or(keys.as_ptr()),
                aside: None,
            };
            // SAFETY: `tile` suits this machine and as many rows as `scores`
            // has, whose columns `panel` covers; `queries` holds those rows.
            unsafe { tile(&work) };
        }
    }

    /// Brings the first `count` weights of each row into the order that the tiles read.
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
                scales: 1,
                layout: &Layout::NONE,
                c: acc[panel * PANEL..].as_mut_ptr(),
                ldc: width,
                resume: true,
                ahead: Ahead::NOTHING.or(values.as_ptr()),
                aside: None,
            };
            // SAFETY: `tile` suits this machine and `rows` rows, as many as
            // `weights` and `acc` hold; `panel` lies within their columns.
            unsafe { tile(&work) };
        }
    }
}

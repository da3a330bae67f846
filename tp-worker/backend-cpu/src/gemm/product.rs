//! The order in which one thread's tiles of a product run.
//!
//! Weights come from memory once per call. A few rows read several panels at once, which
//! keeps the processor's own prefetching busy. More rows reuse a slice of one panel for all
//! their blocks while they ask for the next slice. They ask in several places at a time,
//! because the hardware follows each page apart and one stream does not fill the memory's
//! bandwidth.

use std::ops::Range;

use super::cut::{InputGroups, Passes, TILE_PANEL_GROUP, groups, tile_group, tile_passes};
use super::prefetch::{Ahead, STREAMS};
use super::sum_buffers::Sums;
use super::tile::{Aside, PANEL, Tile, TileFn};
use super::tiles::{Input, Tiles};
use super::widen::{SLICE, Widened, Widening};
use crate::formats::CpuMatrix;
use crate::isa::Isa;
use crate::partition::Shared;

/// Blocks from which on slices are widened for tiles of 8-bit integers.
const WIDEN_TILE_BLOCKS: usize = 2;
/// Most groups whose inputs fit in the last-level cache.
const FEW_GROUPS: usize = 2;
/// Rows of a group times steps of a slice, where tiles multiply 8-bit integers: a mebibyte.
const TILE_GROUPS: usize = 8_192;
/// Most blocks among which asking for the next slice is divided.
const ASKING_BLOCKS: usize = 8;

/// One product, shared by all threads.
pub(super) struct Product<'a> {
    pub isa: Isa,
    pub tiles: &'static Tiles,
    pub w: &'a CpuMatrix,
    pub bias: Option<&'a [f32]>,
    pub rows: usize,
    /// Rows of every block but the last.
    pub height: usize,
    pub a: &'a [u32],
    pub out: Shared<'a, f32>,
    /// Elements from a row of results to the next: the matrix's rows, or more.
    pub out_stride: usize,
    /// Room for sums between slices, where tiles keep sums there.
    pub sums: Option<Sums<'a>>,
}

/// Some panels times some blocks of rows, and the length of their slices.
struct Group {
    thread: usize,
    panels: Range<usize>,
    blocks: Range<usize>,
    slice: usize,
}

/// A slice of a panel, and the tiles for its form.
struct Weights<'a> {
    tiles: &'static Tiles,
    /// Words of `data` per word of the matrix, rounded up.
    growth: usize,
    data: &'a [u32],
    panel: usize,
    steps: Range<usize>,
}

impl Product<'_> {
    /// The number of times that panels pass by: once, or once for each group of row blocks
    /// whose inputs stay in the second-level cache. Native panels pass more than once where
    /// they have several slices and rows are many: otherwise, all inputs would come from
    /// farther away again for every few panels. Weights that tiles multiply pass for each
    /// group of rows too. Quantized weights pass once, as their inputs are small.
    pub(super) fn passes(&self, threads: usize, blocks: usize) -> Passes {
        if self.tiles.input == Input::Blocks {
            return tile_passes(threads, blocks, self.height);
        }
        let InputGroups { rows, large, .. } = *self.w.format.groups();
        let groups = blocks.div_ceil(self.blocks_of(rows));
        let sliced = self.slice(false) < self.w.steps();
        Passes::of_all(match large && sliced && groups > FEW_GROUPS {
            true => groups,
            false => 1,
        })
    }

    /// Computes `panels` for `blocks` on a thread.
    pub(super) fn run(&self, thread: usize, (panels, blocks): (Range<usize>, Range<usize>)) {
        if blocks.is_empty() || panels.is_empty() {
            return;
        }
        if let Some(&(tile, at_once)) = self.tiles.stream.get(self.rows - 1) {
            return self.stream(tile, at_once, panels);
        }
        let from = |widening: &Widening| match self.tiles.input {
            Input::IntegerBlocks => WIDEN_TILE_BLOCKS,
            _ => (widening.blocks)(self.isa),
        };
        let widening = self.w.format.widening(self.isa);
        let widening = widening.filter(|widening| blocks.len() >= from(widening));
        let widened = self.tiles.widened.zip(widening);
        let slice = self.slice(widened.is_some());
        let (panel_group, mut block_group) = match self.tiles.input {
            Input::Blocks => (TILE_PANEL_GROUP, tile_group(self.height)),
            Input::IntegerBlocks => (panels.len(), self.blocks_of(TILE_GROUPS / slice)),
            _ if blocks.len() == 1 => (1, 1),
            _ => {
                let InputGroups { panels, rows, .. } = *self.w.format.groups();
                (panels, self.blocks_of(rows))
            }
        };
        if self.tiles.input == Input::IntegerBlocks {
            // Groups of about the same size: each reads the weights once.
            block_group = blocks.len().div_ceil(blocks.len().div_ceil(block_group));
        }
        let mut widened = widened.map(Widened::new);
        for (panels, blocks) in groups((panels, blocks), [panel_group, block_group]) {
            let group = Group {
                thread,
                panels,
                blocks,
                slice,
            };
            self.group(&group, widened.as_mut());
        }
    }

    /// Multiplies a few rows: reads every panel once, one after another or several at a
    /// time.
    fn stream(&self, tile: TileFn, at_once: usize, panels: Range<usize>) {
        let weights = |panel| self.weights(panel, 0..self.w.steps(), None);
        let full = panels.end.min(self.w.rows / PANEL);
        let mut panel = panels.start;
        while panel + at_once <= full {
            let next = (panel + at_once).min(self.w.panels() - 1);
            let ahead = match at_once {
                1 => Ahead::FOLLOWING,
                _ => self.ahead((next, 0), self.w.steps(), 0, 1),
            };
            self.tile(tile, &weights(panel), 0, ahead, None);
            panel += at_once;
        }
        let tile = self.tiles.single[self.rows - 1];
        for panel in panel..panels.end {
            self.tile_or_edge(tile, &weights(panel), 0, Ahead::NOTHING, None);
        }
        self.add_bias(panels, 0..self.rows);
    }

    /// Multiplies a group of panels by a group of row blocks.
    fn group(&self, group: &Group, mut widened: Option<&mut Widened<'_>>) {
        let Group {
            panels,
            blocks,
            slice,
            ..
        } = group;
        let steps = self.w.steps();
        // A matrix without inputs still has to set its outputs, so there is at least one
        // slice.
        for start in (0..steps.max(1)).step_by(*slice) {
            let part = start..steps.min(start + slice);
            for panel in panels.clone() {
                let next = if panel + 1 < panels.end {
                    Some((panel + 1, start))
                } else if part.end < steps {
                    Some((panels.start, part.end))
                } else {
                    (panel + 1 < self.w.panels()).then_some((panel + 1, 0))
                };
                // A power of two divides the words that a step asks for, so nothing is left
                // out.
                let asking = 1 << blocks.len().min(ASKING_BLOCKS).ilog2();
                let weights = self.weights(panel, part.clone(), widened.as_deref_mut());
                for (index, block) in blocks.clone().enumerate() {
                    let ahead = next
                        .filter(|_| index < asking)
                        .map_or(Ahead::NOTHING, |next| {
                            self.ahead(next, *slice, index, asking)
                        });
                    let tile = weights.tiles.single[self.block_rows(block) - 1];
                    let aside = self.aside(group, &weights, block);
                    self.tile_or_edge(tile, &weights, block, ahead, aside);
                }
            }
        }
        let rows = |block: usize| (block * self.height).min(self.rows);
        self.add_bias(panels.clone(), rows(blocks.start)..rows(blocks.end));
    }

    /// Part `index` of `parts` of the slice that begins at (panel, step).
    fn ahead(&self, next: (usize, usize), slice: usize, index: usize, parts: usize) -> Ahead {
        let (panel, step) = next;
        let words = slice.min(self.w.steps() - step) * self.w.format.step_words();
        let start = (panel * self.w.steps() + step) * self.w.format.step_words();
        let stride = words / STREAMS;
        Ahead {
            from: self.w.data[start + stride / parts * index..].as_ptr(),
            stride,
            parts,
            ..Ahead::NOTHING
        }
    }

    /// Steps of a slice. All slices of a panel are about equally long, so each has time to
    /// ask for the next.
    fn slice(&self, widened: bool) -> usize {
        let step_words = self.w.format.slice_words(self.isa, widened);
        let steps = self.w.steps().max(1);
        let slice = steps.div_ceil(steps.div_ceil(SLICE / step_words));
        slice.next_multiple_of(self.tiles.input.run())
    }

    /// Number of blocks that have `rows` rows together; at least 1.
    fn blocks_of(&self, rows: usize) -> usize {
        (rows / self.height).max(1)
    }

    fn block_rows(&self, block: usize) -> usize {
        self.height.min(self.rows - block * self.height)
    }

    /// Steps `steps` of `panel`, widened where there is room for that.
    fn weights<'w>(
        &'w self,
        panel: usize,
        steps: Range<usize>,
        widened: Option<&'w mut Widened<'_>>,
    ) -> Weights<'w> {
        let words = self.w.format.step_words();
        let first = panel * self.w.steps();
        let words = (first + steps.start) * words..(first + steps.end) * words;
        let narrow = &self.w.data[words];
        let (data, tiles) = match widened {
            Some(widened) => widened.widen(self.isa, narrow),
            None => (narrow, self.tiles),
        };
        Weights {
            tiles,
            growth: data.len().div_ceil(narrow.len().max(1)).max(1),
            data,
            panel,
            steps,
        }
    }

    /// Runs `tile`; the last panel's padding has no place in `out`.
    fn tile_or_edge(
        &self,
        tile: TileFn,
        weights: &Weights<'_>,
        block: usize,
        ahead: Ahead,
        aside: Option<Aside>,
    ) {
        let Weights { panel, steps, .. } = weights;
        let rows = self.block_rows(block);
        let columns = self.w.rows.min((panel + 1) * PANEL) - panel * PANEL;
        if columns == PANEL {
            return self.tile(tile, weights, block, ahead, aside);
        }
        let mut edge = [0.0; PANEL * PANEL];
        let first = block * self.height;
        let range = |row: usize| {
            let start = (first + row) * self.out_stride + panel * PANEL;
            start..start + columns
        };
        if steps.start > 0 {
            for row in 0..rows {
                // SAFETY: this thread alone works on this panel and block.
                let part = unsafe { self.out.slice(range(row)) };
                edge[row * PANEL..row * PANEL + columns].copy_from_slice(part);
            }
        }
        let target = (edge.as_mut_ptr(), PANEL);
        self.call(tile, weights, block, target, (ahead, None));
        for row in 0..rows {
            // SAFETY: as above.
            let part = unsafe { self.out.slice(range(row)) };
            part.copy_from_slice(&edge[row * PANEL..row * PANEL + columns]);
        }
    }

    fn tile(
        &self,
        tile: TileFn,
        weights: &Weights<'_>,
        block: usize,
        ahead: Ahead,
        aside: Option<Aside>,
    ) {
        let first = block * self.height * self.out_stride + weights.panel * PANEL;
        // SAFETY: the tile's first element lies inside `out`.
        let c = unsafe { self.out.as_ptr().add(first) };
        self.call(tile, weights, block, (c, self.out_stride), (ahead, aside));
    }

    /// Runs `tile` with its result at `target`: the address of the result, and elements from
    /// row to row.
    fn call(
        &self,
        tile: TileFn,
        weights: &Weights<'_>,
        block: usize,
        target: (*mut f32, usize),
        (ahead, aside): (Ahead, Option<Aside>),
    ) {
        let (input, format) = (self.tiles.input, self.w.format);
        let Weights { steps, data, .. } = weights;
        let widened = weights.tiles.steps_per(self.tiles);
        let first = block * self.height * input.len(self.w.cols);
        let start = first + steps.start * input.step_words() * self.block_rows(block);
        let work = Tile {
            a: self.a[start..].as_ptr(),
            b: data.as_ptr(),
            panel_stride: self.w.steps() * format.step_words(),
            steps: steps.len() * widened,
            scales: format.scales(),
            layout: format.layout(),
            c: target.0,
            ldc: target.1,
            resume: steps.start > 0,
            ahead: Ahead {
                parts: ahead.parts * weights.growth,
                ..ahead.or(data.as_ptr())
            },
            aside,
        };
        // SAFETY: `tile` was compiled for an instruction set this machine runs
        // and for as many rows as the block has; the slices above begin where
        // the block's steps and the panel's steps do and reach past the last of
        // them (further panels follow a first one in the same matrix); the
        // target has room for the rows, and no other thread touches it.
        unsafe { tile(&work) };
    }

    /// The place where a tile of a long prompt keeps its sums. Sums of a last panel that is
    /// not full are in the result alone.
    fn aside(&self, group: &Group, weights: &Weights<'_>, block: usize) -> Option<Aside> {
        let Weights { panel, steps, .. } = weights;
        let sums = self
            .sums
            .as_ref()
            .filter(|_| *panel < self.w.rows / PANEL)?;
        let place = [panel - group.panels.start, block - group.blocks.start];
        Some(sums.aside(group.thread, place, steps.end == self.w.steps()))
    }

    fn add_bias(&self, panels: Range<usize>, rows: Range<usize>) {
        let Some(bias) = self.bias else { return };
        let columns = panels.start * PANEL..self.w.rows.min(panels.end * PANEL);
        if columns.is_empty() {
            return;
        }
        for row in rows {
            let start = row * self.out_stride;
            // SAFETY: this thread alone works on these panels and rows.
            let out = unsafe { self.out.slice(start + columns.start..start + columns.end) };
            for (out, bias) in out.iter_mut().zip(&bias[columns.clone()]) {
                *out += bias;
            }
        }
    }
}

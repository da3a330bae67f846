//! One share of attention: some queries of one request under one key head.
//!
//! Scores and weighted sums are the matrix kernels' tiles over repacked blocks
//! of 64 positions, with an online softmax between them. Blocks and the
//! segments of 1,024 positions they form lie at absolute positions, and a
//! query skips what it does not see, so its bits depend neither on pages nor
//! on which queries share the task. A segment starts from nothing and is folded
//! into the total when it ends: segments could be computed apart.

use std::ops::Range;

use lockstep_backend::{AttentionShape, BackendError, Batch};

use super::cache::{BLOCK, Block, CpuKvCache, Plane};
use super::softmax::{State, finish, merge, softmax_rows};
use crate::gemm::{Element, PANEL, Tile, Tiles};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::number::pack_row;
use crate::partition::Shared;

/// Positions folded into the total at once.
pub(crate) const SEGMENT: usize = 1_024;

/// Queries `queries` of request `row` under key head `head`.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub row: usize,
    pub head: usize,
    pub queries: Range<usize>,
}

/// What all tasks of one call share.
pub(crate) struct Call<'a> {
    pub isa: Isa,
    pub element: Element,
    pub tiles: &'static Tiles,
    pub cache: &'a CpuKvCache,
    pub layer: usize,
    pub qkv: &'a [f32],
    pub shape: &'a AttentionShape,
    pub batch: &'a Batch<'a>,
    pub out: Shared<'a, f32>,
}

/// A thread's working memory.
pub(crate) struct Scratch {
    queries: Buffer<u32>,
    keys: Buffer<u32>,
    values: Buffer<u32>,
    scores: Vec<[f32; BLOCK]>,
    weights: Vec<u32>,
    segment: Sums,
    total: Sums,
}

/// Running softmax and weighted sums of a task's rows.
struct Sums {
    states: Vec<State>,
    acc: Buffer<f32>,
}

impl Sums {
    fn clear(&mut self, rows: usize, width: usize) {
        self.states[..rows].fill(State::EMPTY);
        self.acc[..rows * width].fill(0.0);
    }
}

/// Head columns rounded up to whole panels.
fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(PANEL)
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let sums = || Sums {
            states: Vec::new(),
            acc: Buffer::empty(),
        };
        Self {
            queries: Buffer::empty(),
            keys: Buffer::empty(),
            values: Buffer::empty(),
            scores: Vec::new(),
            weights: Vec::new(),
            segment: sums(),
            total: sums(),
        }
    }

    /// Makes room for tasks of `rows` query rows.
    pub(crate) fn grow(&mut self, rows: usize, head_dim: usize) -> Result<(), BackendError> {
        const WHAT: &str = "attention scratch";
        self.queries.grow(rows * head_dim, WHAT)?;
        self.keys.grow(BLOCK * head_dim, WHAT)?;
        self.values.grow(BLOCK * padded(head_dim), WHAT)?;
        // No tile is higher than a panel is wide.
        self.scores.resize(PANEL, [0.0; BLOCK]);
        self.weights.resize(PANEL * BLOCK, 0);
        for sums in [&mut self.segment, &mut self.total] {
            if sums.states.len() < rows {
                sums.states.resize(rows, State::EMPTY);
            }
            sums.acc.grow(rows * padded(head_dim), WHAT)?;
        }
        Ok(())
    }
}

impl Call<'_> {
    /// Query heads per key head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Computes the task's part of `out`.
    pub(crate) fn run(&self, task: &Task, scratch: &mut Scratch) {
        let row = self.batch.rows[task.row];
        let rows = task.queries.len() * self.group();
        let width = padded(self.shape.head_dim);
        let seen = row.kv_len as usize + task.queries.end;
        let planes = [0, 1].map(|part| self.cache.plane(self.layer, part, task.head));
        self.pack_queries(task, &mut scratch.queries);
        scratch.total.clear(rows, width);
        for start in (0..seen).step_by(SEGMENT) {
            let end = seen.min(start + SEGMENT);
            if start == 0 {
                // Folding into an empty total would copy; the first segment is the total.
                self.segment(task, &planes, start..end, scratch);
                std::mem::swap(&mut scratch.segment, &mut scratch.total);
                continue;
            }
            self.segment(task, &planes, start..end, scratch);
            let Scratch { segment, total, .. } = scratch;
            let parts = segment.states.iter().zip(segment.acc.chunks_exact(width));
            let totals = total
                .states
                .iter_mut()
                .zip(total.acc.chunks_exact_mut(width));
            for ((state, acc), (total, total_acc)) in parts.zip(totals).take(rows) {
                if state.sum != 0.0 || state.max != f32::NEG_INFINITY {
                    merge(self.isa, total, total_acc, state, acc);
                }
            }
        }
        self.finish(task, &scratch.total);
    }

    fn finish(&self, task: &Task, sums: &Sums) {
        let (head_dim, group) = (self.shape.head_dim, self.group());
        let first = self.batch.rows[task.row].start as usize + task.queries.start;
        let rows = sums
            .states
            .iter()
            .zip(sums.acc.chunks_exact(padded(head_dim)));
        for (index, (state, acc)) in rows.take(task.queries.len() * group).enumerate() {
            let (token, head) = (first + index / group, task.head * group + index % group);
            let start = token * self.shape.out_width() + head * head_dim;
            // SAFETY: tasks cover disjoint (token, head) pairs.
            let out = unsafe { self.out.slice(start..start + head_dim) };
            finish(self.isa, state, &acc[..head_dim], out);
        }
    }

    /// Rows are (query, head) with the head running fastest, in blocks of the
    /// tile's height.
    fn pack_queries(&self, task: &Task, out: &mut [u32]) {
        let (head_dim, group) = (self.shape.head_dim, self.group());
        let len = self.tiles.input.len(head_dim);
        let first = self.batch.rows[task.row].start as usize + task.queries.start;
        let rows = task.queries.len() * group;
        let height = self.tiles.rows();
        for index in 0..rows {
            let (token, head) = (first + index / group, task.head * group + index % group);
            let start = token * self.shape.qkv_width() + head * head_dim;
            let query = &self.qkv[start..start + head_dim];
            let block = index / height * height;
            let block_rows = height.min(rows - block);
            pack_row(
                self.isa,
                self.tiles.input,
                query,
                out,
                block * len + index - block,
                block_rows,
            );
        }
    }

    fn segment(
        &self,
        task: &Task,
        planes: &[Plane; 2],
        positions: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let row = self.batch.rows[task.row];
        let rows = task.queries.len() * self.group();
        scratch.segment.clear(rows, padded(self.shape.head_dim));
        let block = |from: usize| Block {
            pages: &self.batch.pages[row.pages_start as usize..],
            from,
            count: BLOCK.min(positions.end.saturating_sub(from)),
        };
        for from in positions.clone().step_by(BLOCK) {
            let (block, next) = (block(from), block(from + BLOCK));
            for plane in planes {
                self.cache.prefetch(plane, &next);
            }
            self.cache.pack_keys(
                self.isa,
                self.element,
                &planes[0],
                &block,
                &mut scratch.keys,
            );
            self.cache.pack_values(
                self.isa,
                self.element,
                &planes[1],
                &block,
                &mut scratch.values,
            );
            for first in (0..rows).step_by(self.tiles.rows()) {
                let last = rows.min(first + self.tiles.rows()) - 1;
                let position = row.kv_len as usize + task.queries.start + last / self.group();
                if position >= from {
                    self.block(task, first..last + 1, &block, scratch);
                }
            }
        }
    }

    /// One tile of query rows against one block of positions.
    fn block(&self, task: &Task, rows: Range<usize>, block: &Block<'_>, scratch: &mut Scratch) {
        let width = padded(self.shape.head_dim);
        let Scratch {
            queries,
            keys,
            values,
            scores,
            weights,
            segment,
            ..
        } = scratch;
        let len = self.tiles.input.len(self.shape.head_dim);
        let scores = &mut scores[..rows.len()];
        self.scores(
            &queries[rows.start * len..rows.end * len],
            keys,
            block.count,
            scores,
        );

        let query = self.batch.rows[task.row].kv_len as usize + task.queries.start;
        let mut visible = [0; PANEL];
        for (visible, row) in visible.iter_mut().zip(rows.clone()) {
            let seen = query + row / self.group() + 1;
            *visible = seen.saturating_sub(block.from).min(block.count);
        }
        let acc = &mut segment.acc[rows.start * width..rows.end * width];
        let states = &mut segment.states[rows.clone()];
        softmax_rows(
            self.isa,
            scores,
            &visible[..rows.len()],
            self.shape.scale,
            states,
            acc,
        );
        for (row, weight) in scores.iter().enumerate() {
            pack_row(self.isa, self.tiles.input, weight, weights, row, rows.len());
        }
        self.accumulate(weights, values, block.count, rows.len(), acc);
    }

    /// Query rows times keys.
    fn scores(&self, queries: &[u32], keys: &[u32], count: usize, scores: &mut [[f32; BLOCK]]) {
        let steps = self.element.steps(self.shape.head_dim);
        let tile = self.tiles.single[scores.len() - 1];
        let scores = scores.as_flattened_mut();
        for panel in 0..count.div_ceil(PANEL) {
            let keys = &keys[panel * steps * PANEL..(panel + 1) * steps * PANEL];
            let work = Tile {
                a: queries.as_ptr(),
                b: keys.as_ptr(),
                panel_stride: 0,
                steps,
                c: scores[panel * PANEL..].as_mut_ptr(),
                ldc: BLOCK,
                resume: false,
            };
            // SAFETY: `tile` suits this machine and as many rows as `scores`
            // has, whose columns `panel` covers; `queries` holds those rows.
            unsafe { tile(&work) };
        }
    }

    /// Adds weights times values to `acc`, `rows` rows.
    fn accumulate(
        &self,
        weights: &[u32],
        values: &[u32],
        count: usize,
        rows: usize,
        acc: &mut [f32],
    ) {
        let width = padded(self.shape.head_dim);
        let panel_len = self.element.steps(BLOCK) * PANEL;
        let tile = self.tiles.single[rows - 1];
        for panel in 0..width / PANEL {
            let values = &values[panel * panel_len..(panel + 1) * panel_len];
            let work = Tile {
                a: weights.as_ptr(),
                b: values.as_ptr(),
                panel_stride: 0,
                steps: self.element.steps(count),
                c: acc[panel * PANEL..].as_mut_ptr(),
                ldc: width,
                resume: true,
            };
            // SAFETY: `tile` suits this machine and `rows` rows, as many as
            // `weights` and `acc` hold; `panel` lies within their columns.
            unsafe { tile(&work) };
        }
    }
}

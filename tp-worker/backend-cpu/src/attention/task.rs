//! One share of attention: some queries of one request under some key heads.
//!
//! Keys and values are read in blocks of 64 positions, once for all query rows of the task,
//! with an online softmax between scores and weighted sums. Blocks lie at absolute
//! positions, and so do segments, which are 512 positions of blocks. A query skips positions
//! that it does not see. So its bits depend neither on pages nor on the other queries of the
//! task. A segment starts from nothing and is folded into the total when it ends, so
//! segments can be computed apart.

mod heads;

use std::ops::Range;

use lockstep_backend::{AttentionShape, Row};

use super::block::Queries;
use super::cache::CpuKvCache;
use super::cells::BLOCK;
use super::direct::{Direct, Order};
use super::integers::{Integers, pack_query, query_words};
use super::plan::Join;
use super::prefetch::Ahead;
use super::scratch::{Scratch, Sums, padded, partial_len};
use super::softmax::{State, finish, merge};
use super::tiled::{self, Tiled};
use super::tree::Visible;
use crate::gemm::{Element, Input, Tiles};
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::number::pack_row;
use crate::partition::Shared;

/// Positions folded into the total at once.
pub(crate) const SEGMENT: usize = 512;

/// Queries `queries` of request `row` under key heads `heads` over `segments`.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub row: usize,
    pub heads: Range<usize>,
    pub queries: Range<usize>,
    pub segments: Range<usize>,
    /// The join that takes this task's segments when other tasks compute the rest.
    pub join: Option<usize>,
}

/// Data that all tasks of one call share.
pub(crate) struct Call<'a> {
    pub isa: Isa,
    pub element: Element,
    pub tiles: &'static Tiles,
    /// At most one of the next three is `Some`.
    pub direct: Option<&'static Direct>,
    pub integers: Option<&'static Integers>,
    pub tiled: Option<&'static Tiled>,
    /// Multiple of rows that each key head takes.
    pub unit: usize,
    pub cache: &'a CpuKvCache,
    pub layer: usize,
    pub qkv: &'a [f32],
    pub shape: &'a AttentionShape,
    pub inputs: &'a CpuInputs,
    pub joins: &'a [Join],
    pub partials: Shared<'a, f32>,
    pub out: Shared<'a, f32>,
}

/// A task and values that follow from it.
pub(super) struct View<'a> {
    pub task: &'a Task,
    pub row: Row,
    pub pages: &'a [u32],
    /// Query rows of each key head: (query, head) with the head running fastest.
    pub rows: usize,
    /// Number of rows from the first row of one key head to the first row of the next.
    pub apart: usize,
    /// Positions that the task's queries see.
    pub seen: usize,
}

impl View<'_> {
    /// The place of each query row: its key head, its number under this head, and its index
    /// in the task's working memory.
    fn places(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<'_> {
        let (rows, apart) = (self.rows, self.apart);
        let heads = self.task.heads.clone().enumerate();
        heads.flat_map(move |(index, head)| {
            (0..rows).map(move |row| (head, row, index * apart + row))
        })
    }
}

impl Call<'_> {
    /// Query heads per key head.
    pub(super) fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    fn view<'a>(&'a self, task: &'a Task) -> View<'a> {
        let row = self.inputs.rows[task.row];
        let new = match row.mask {
            Some(_) => row.q_len as usize,
            None => task.queries.end,
        };
        let rows = task.queries.len() * self.group();
        View {
            task,
            row,
            pages: &self.inputs.pages(self.cache.shape.group)[row.pages_start as usize..],
            rows,
            apart: rows.next_multiple_of(self.unit),
            seen: row.kv_len as usize + new,
        }
    }

    /// Computes the task's part of `out`, or of a join's partial results. May read ahead
    /// into `next`, the task that most likely follows on this thread.
    pub(crate) fn run(&self, task: &Task, next: Option<&Task>, scratch: &mut Scratch) {
        let next = next.map(|task| self.view(task));
        let (view, next) = (&self.view(task), next.as_ref());
        for index in 0..task.heads.len() {
            let (head, to) = (task.heads.start + index, self.packed_at(view, index));
            let out = &mut scratch.queries[to..];
            self.pack_queries(view, head, 0..view.rows, Queries::Task(to), out);
        }
        for segment in task.segments.clone() {
            self.segment(view, segment, next, scratch);
            if let Some(join) = task.join {
                self.store(view, &self.joins[join], segment, &scratch.segment);
            } else if segment == 0 {
                // Folding into an empty total would copy; the first segment is the total.
                std::mem::swap(&mut scratch.segment, &mut scratch.total);
            } else {
                let (part, total) = (&scratch.segment, &mut scratch.total);
                let width = padded(self.shape.head_dim);
                for (_, _, slot) in view.places() {
                    let acc = &part.acc[slot * width..(slot + 1) * width];
                    self.fold(total, slot, &part.states[slot], acc);
                }
            }
        }
        match task.join {
            None => self.finish(view, &scratch.total),
            Some(join) if self.joins[join].done() => {
                self.collect(view, &self.joins[join], &mut scratch.total);
                self.finish(view, &scratch.total);
            }
            Some(_) => {}
        }
    }

    /// Returns true if `rows` rows, packed together, read keys as they lie in the cache.
    pub(super) fn is_few(&self, rows: usize) -> bool {
        rows <= match (self.integers, self.tiled, self.direct) {
            (Some(integers), ..) => integers.few.len(),
            (None, Some(_), _) => tiled::ROWS,
            (None, None, Some(direct)) => direct.scores.len(),
            (None, None, None) => 0,
        }
    }

    /// Packs query rows of a key head in blocks of the tile's height.
    fn pack_queries(
        &self,
        view: &View<'_>,
        head: usize,
        rows: Range<usize>,
        queries: Queries,
        out: &mut [u32],
    ) {
        let (head_dim, group) = (self.shape.head_dim, self.group());
        let len = self.query_words();
        let first = view.row.start as usize + view.task.queries.start;
        let (height, few) = (self.tiles.rows(), self.is_few(rows.len()));
        for (index, row) in rows.clone().enumerate() {
            let (token, head) = (first + row / group, head * group + row % group);
            let start = token * self.shape.qkv_width() + head * head_dim;
            let query = &self.qkv[start..start + head_dim];
            let block = index / height * height;
            let (out, count) = (&mut out[block * len..], height.min(rows.len() - block));
            let (isa, index) = (self.isa, index - block);
            match (self.integers, self.tiled) {
                (Some(integers), _) => {
                    let layout = integers.layouts[usize::from(few)];
                    pack_query(isa, query, out, layout, index, layout.height(count));
                }
                (None, Some(_)) if few => {
                    pack_row(isa, Input::Pairs, query, out, index, tiled::ROWS);
                }
                (None, Some(_)) => {
                    let count = queries.height(count).padded();
                    pack_row(isa, Input::Blocks, query, out, index, count);
                }
                (None, None) => pack_row(isa, self.tiles.input, query, out, index, count),
            }
        }
    }

    /// Words of a packed query row.
    pub(super) fn query_words(&self) -> usize {
        let head_dim = self.shape.head_dim;
        match self.integers {
            Some(_) => query_words(head_dim),
            None => self.tiles.input.len(head_dim),
        }
    }

    /// The order in which sums hold columns.
    fn order(&self) -> Order {
        match (self.integers, self.tiled, self.direct) {
            (Some(integers), ..) => integers.order,
            (None, Some(_), _) => Order::Fours,
            (None, None, Some(direct)) => direct.order,
            (None, None, None) => Order::Plain,
        }
    }

    /// Attends one segment of positions into `scratch.segment`.
    fn segment(
        &self,
        view: &View<'_>,
        segment: usize,
        next: Option<&View<'_>>,
        scratch: &mut Scratch,
    ) {
        let heads = &view.task.heads;
        let height = heads.len() * view.apart;
        scratch.segment.clear(height, padded(self.shape.head_dim));
        let start = segment * SEGMENT;
        let end = view.seen.min(start + SEGMENT);
        let together = self.takes_heads_together(view);
        for from in (start..end).step_by(BLOCK) {
            let to = end.min(from + BLOCK);
            if let Some(tiled) = together {
                self.heads(tiled, view, from..to, scratch);
                continue;
            }
            for index in 0..heads.len() {
                let head = heads.start + index;
                // The block that was read ahead, unless this task has just begun.
                std::mem::swap(&mut scratch.cells, &mut scratch.ahead.cells);
                if index == 0 && from == view.task.segments.start * SEGMENT {
                    scratch.cells.clear();
                    let plane = self.cache.keys(self.layer, head);
                    scratch.cells.extend(&plane, view.pages, from..to);
                }
                if head + 1 < heads.end {
                    let plane = self.cache.keys(self.layer, head + 1);
                    let cells = scratch.ahead.restart();
                    cells.extend(&plane, view.pages, from..to);
                } else {
                    self.look_ahead(view, to, next, &mut scratch.ahead);
                }
                self.block(view, index, from..to, scratch);
                scratch.ahead.fetch(self.cache, 2 * BLOCK);
            }
        }
    }

    /// Attends to the block at `scratch.cells`: the positions `block` under the task's key
    /// head number `index`.
    fn block(&self, view: &View<'_>, index: usize, block: Range<usize>, scratch: &mut Scratch) {
        let cached = view.row.kv_len as usize;
        match view.row.mask {
            Some(mask) if block.end > cached => {
                let visible = Visible::new(&self.inputs.masks, mask, &view.row);
                self.masked_block(view, &visible, block.start, scratch);
            }
            _ => {
                let first = cached + view.task.queries.start;
                let slot = index * view.apart;
                let queries = Queries::Task(self.packed_at(view, index));
                self.attend(slot..slot + view.rows, queries, scratch, |row| {
                    (first + (row - slot) / self.group() + 1).saturating_sub(block.start)
                });
            }
        }
    }

    /// Start of the packed rows of the task's key head number `index`.
    fn packed_at(&self, view: &View<'_>, index: usize) -> usize {
        index * view.apart * self.query_words()
    }

    /// Attends to a block that reaches into the new tokens of a masked row. Each query has
    /// positions of its own there. Tasks of masked rows have one key head.
    fn masked_block(
        &self,
        view: &View<'_>,
        visible: &Visible<'_>,
        from: usize,
        scratch: &mut Scratch,
    ) {
        let (cached, group) = (view.row.kv_len as usize, self.group());
        for (index, query) in view.task.queries.clone().enumerate() {
            scratch.cells.clear();
            let head = view.task.heads.start;
            let (plane, cells) = (&self.cache.keys(self.layer, head), &mut scratch.cells);
            cells.extend(plane, view.pages, from..cached.max(from));
            let skipped = from.saturating_sub(cached);
            let left = BLOCK - cells.len();
            for token in visible.tokens(query).skip(skipped).take(left) {
                let position = cached + token;
                cells.extend(plane, view.pages, position..position + 1);
            }
            let count = cells.len();
            if count > 0 {
                let rows = index * group..(index + 1) * group;
                let out = &mut scratch.own_queries;
                self.pack_queries(view, head, rows.clone(), Queries::Own, out);
                self.attend(rows, Queries::Own, scratch, |_| count);
            }
        }
    }

    /// Points `ahead` at the positions after `from`: more of this task, or the beginning of
    /// the next.
    fn look_ahead(&self, view: &View<'_>, from: usize, next: Option<&View<'_>>, ahead: &mut Ahead) {
        let cells = ahead.restart();
        let end = view.seen.min(view.task.segments.end * SEGMENT);
        if from < end {
            let plane = self.cache.keys(self.layer, view.task.heads.start);
            cells.extend(&plane, view.pages, from..end.min(from + BLOCK));
        } else if let Some(next) = next {
            let from = next.task.segments.start * SEGMENT;
            let to = next.seen.min(from + BLOCK);
            let plane = self.cache.keys(self.layer, next.task.heads.start);
            cells.extend(&plane, next.pages, from..to);
        }
    }

    /// Folds a later segment's result for one row into the total.
    fn fold(&self, total: &mut Sums, row: usize, state: &State, acc: &[f32]) {
        if !state.is_empty() {
            let width = acc.len();
            let total_acc = &mut total.acc[row * width..(row + 1) * width];
            merge(self.isa, &mut total.states[row], total_acc, state, acc);
        }
    }

    /// The range where a join keeps one segment's result.
    fn partial(&self, view: &View<'_>, join: &Join, segment: usize) -> Range<usize> {
        let rows = view.task.heads.len() * view.rows;
        let len = rows * partial_len(self.shape.head_dim);
        let start = join.start + segment * len;
        start..start + len
    }

    /// Leaves a segment's result in its join.
    fn store(&self, view: &View<'_>, join: &Join, segment: usize, sums: &Sums) {
        let width = padded(self.shape.head_dim);
        // SAFETY: each segment of a join belongs to one task.
        let parts = unsafe { self.partials.slice(self.partial(view, join, segment)) };
        let parts = parts.chunks_exact_mut(2 + width);
        for (part, (_, _, slot)) in parts.zip(view.places()) {
            let state = &sums.states[slot];
            (part[0], part[1]) = (state.max, state.sum);
            part[2..].copy_from_slice(&sums.acc[slot * width..(slot + 1) * width]);
        }
    }

    /// Folds a join's segments in order.
    fn collect(&self, view: &View<'_>, join: &Join, total: &mut Sums) {
        let width = padded(self.shape.head_dim);
        for segment in 0..join.segments {
            // SAFETY: all tasks of the join are done, as its counter told this
            // thread, so nobody else touches its segments.
            let parts = unsafe { self.partials.slice(self.partial(view, join, segment)) };
            for (part, (_, _, slot)) in parts.chunks_exact(2 + width).zip(view.places()) {
                let state = State {
                    max: part[0],
                    sum: part[1],
                };
                if segment == 0 {
                    total.states[slot] = state;
                    total.acc[slot * width..(slot + 1) * width].copy_from_slice(&part[2..]);
                } else {
                    self.fold(total, slot, &state, &part[2..]);
                }
            }
        }
    }

    /// Writes the task's part of `out`.
    fn finish(&self, view: &View<'_>, sums: &Sums) {
        let (head_dim, group) = (self.shape.head_dim, self.group());
        let first = view.row.start as usize + view.task.queries.start;
        let width = padded(head_dim);
        for (head, row, slot) in view.places() {
            let (token, head) = (first + row / group, head * group + row % group);
            let (state, acc) = (&sums.states[slot], &sums.acc[slot * width..]);
            let start = token * self.shape.out_width() + head * head_dim;
            // SAFETY: tasks and joins cover disjoint (token, head) pairs.
            let out = unsafe { self.out.slice(start..start + head_dim) };
            self.order().restore(&acc[..head_dim], out);
            finish(self.isa, state, out);
        }
    }
}

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

use super::block::Queries;
use super::call::{Call, View};
use super::cells::{BLOCK, Cells};
use super::integers::pack_query;
use super::plan::{Join, SEGMENT, Task};
use super::prefetch::Ahead;
use super::scratch::{Scratch, Sums, padded, partial_len};
use super::softmax::{State, finish, merge};
use super::tiled;
use super::tree::TreeMask;
use super::visible::Visible;
use crate::gemm::Input;
use crate::number::pack_row;

impl Call<'_> {
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
            } else if segment == task.segments.start {
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
        let together = self.takes_heads_together(view);
        let first = view.first_block();
        for block in view.blocks(segment) {
            if let Some(tiled) = together {
                self.heads(tiled, view, block, scratch);
                continue;
            }
            for index in 0..heads.len() {
                let head = heads.start + index;
                // The block that was read ahead, unless this task has just begun.
                std::mem::swap(&mut scratch.cells, &mut scratch.ahead.cells);
                if index == 0 && block == first {
                    self.look_at(view, head, block.clone(), &mut scratch.cells);
                }
                if head + 1 < heads.end {
                    let cells = scratch.ahead.restart();
                    self.look_at(view, head + 1, block.clone(), cells);
                } else {
                    self.look_ahead(view, block.end, next, &mut scratch.ahead);
                }
                self.block(view, index, block.clone(), scratch);
                scratch.ahead.fetch(self.cache, 2 * BLOCK);
            }
        }
    }

    /// Attends to the block at `scratch.cells`: the positions `block` under the task's key
    /// head number `index`.
    fn block(&self, view: &View<'_>, index: usize, block: Range<usize>, scratch: &mut Scratch) {
        if let Some(mask) = view.row.mask
            && block.end > view.row.kv_len as usize
        {
            return self.masked_block(view, mask, block.start, scratch);
        }
        let slot = index * view.apart;
        let queries = Queries::Task(self.packed_at(view, index));
        let (rows, all) = (slot..slot + view.rows, &view.seen_by_all);
        if all.start <= block.start && block.end <= all.end {
            let whole = Visible::first(block.len());
            return self.attend(rows, queries, scratch, |_| whole);
        }
        let (sight, first) = (self.sight(view), view.task.queries.start);
        self.attend(rows, queries, scratch, |row| {
            Visible::of(&sight.of(first + (row - slot) / self.group()), &block)
        });
    }

    /// Start of the packed rows of the task's key head number `index`.
    fn packed_at(&self, view: &View<'_>, index: usize) -> usize {
        index * view.apart * self.query_words()
    }

    /// Attends to a block that reaches into the new tokens of a masked row. Each query has
    /// positions of its own there. Tasks of masked rows have one key head.
    fn masked_block(&self, view: &View<'_>, mask: u32, from: usize, scratch: &mut Scratch) {
        let (cached, group) = (view.row.kv_len as usize, self.group());
        let mask = TreeMask::new(&self.inputs.masks, mask, &view.row);
        let (sight, head) = (self.sight(view), view.task.heads.start);
        let plane = &self.cache.keys(self.layer, head);
        for (index, query) in view.task.queries.clone().enumerate() {
            let visible = Visible::of(&sight.of(query), &(from..from + BLOCK));
            if visible.is_nothing() {
                continue;
            }
            let (first, end) = (from + visible.start, from + visible.end);
            let cells = &mut scratch.cells;
            cells.skip(visible.start);
            cells.extend(plane, view.pages, first..end.min(cached));
            let skipped = first.saturating_sub(cached);
            let left = visible.end - cells.len();
            for token in mask.tokens(query).skip(skipped).take(left) {
                let position = cached + token;
                cells.extend(plane, view.pages, position..position + 1);
            }
            cells.hide(visible.start);
            let rows = index * group..(index + 1) * group;
            let out = &mut scratch.own_queries;
            self.pack_queries(view, head, rows.clone(), Queries::Own, out);
            self.attend(rows, Queries::Own, scratch, |_| visible);
        }
    }

    /// Points `cells` at a block of positions under a key head.
    fn look_at(&self, view: &View<'_>, head: usize, block: Range<usize>, cells: &mut Cells) {
        let plane = self.cache.keys(self.layer, head);
        cells.fill(&plane, view.pages, block, view.seen.start);
    }

    /// Points `ahead` at the positions after `from`: more of this task, or the beginning of
    /// the next.
    fn look_ahead(&self, view: &View<'_>, from: usize, next: Option<&View<'_>>, ahead: &mut Ahead) {
        let cells = ahead.restart();
        let end = view.seen.end.min(view.task.segments.end * SEGMENT);
        if from < end {
            let block = from..end.min(from + BLOCK);
            self.look_at(view, view.task.heads.start, block, cells);
        } else if let Some(next) = next {
            self.look_at(next, next.task.heads.start, next.first_block(), cells);
        }
    }

    /// Folds a later segment's result for one row into the total.
    fn fold(&self, total: &mut Sums, row: usize, state: &State, acc: &[f32]) {
        if state.is_empty() {
            return;
        }
        let width = acc.len();
        let total_acc = &mut total.acc[row * width..(row + 1) * width];
        let total = &mut total.states[row];
        if total.is_empty() {
            // Other rows of the task see earlier segments than this one.
            *total = *state;
            total_acc.copy_from_slice(acc);
        } else {
            merge(self.isa, total, total_acc, state, acc);
        }
    }

    /// The range where a join keeps one segment's result.
    fn partial(&self, view: &View<'_>, join: &Join, segment: usize) -> Range<usize> {
        let rows = view.task.heads.len() * view.rows;
        let len = rows * partial_len(self.shape.head_dim);
        let start = join.start + (segment - join.segments.start) * len;
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
        for segment in join.segments.clone() {
            // SAFETY: all tasks of the join are done, as its counter told this
            // thread, so nobody else touches its segments.
            let parts = unsafe { self.partials.slice(self.partial(view, join, segment)) };
            for (part, (_, _, slot)) in parts.chunks_exact(2 + width).zip(view.places()) {
                let state = State {
                    max: part[0],
                    sum: part[1],
                };
                if segment == join.segments.start {
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
        let (columns, group) = (self.shape.value_dim(), self.group());
        let first = view.row.start as usize + view.task.queries.start;
        let width = padded(self.shape.head_dim);
        for (head, row, slot) in view.places() {
            let (token, head) = (first + row / group, head * group + row % group);
            let (state, acc) = (&sums.states[slot], &sums.acc[slot * width..]);
            let start = token * self.shape.out_width() + head * columns;
            // SAFETY: tasks and joins cover disjoint (token, head) pairs.
            let out = unsafe { self.out.slice(start..start + columns) };
            self.order().restore(&acc[..columns], out);
            let sink = self
                .sinks
                .map(|sinks| sinks[head] * std::f32::consts::LOG2_E);
            finish(self.isa, state, sink, out);
        }
    }
}

//! A call of attention, which runs as many tasks over the same data.

use std::ops::Range;

use lockstep_backend::{AttentionShape, Row};

use super::cache::CpuKvCache;
use super::cells::BLOCK;
use super::direct::{Direct, Order};
use super::integers::{Integers, query_words};
use super::plan::{Join, SEGMENT, Task};
use super::tiled::{self, Tiled};
use super::visible::{Sight, seen_by_all, seen_by_any};
use crate::gemm::{Element, Tiles};
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::partition::Shared;

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
    /// Sinks of the query heads, if they have some.
    pub sinks: Option<&'a [f32]>,
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
    /// Positions that at least one of the task's queries may see.
    pub seen: Range<usize>,
    /// Positions that all of the task's queries see.
    pub seen_by_all: Range<usize>,
}

impl View<'_> {
    /// The blocks of a segment that the task attends to, from first to last.
    pub(super) fn blocks(&self, segment: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (start, end) = (
            segment * SEGMENT,
            self.seen.end.min((segment + 1) * SEGMENT),
        );
        let first = start.max(self.seen.start / BLOCK * BLOCK);
        let blocks = (first..end).step_by(BLOCK);
        blocks.map(move |from| from..end.min(from + BLOCK))
    }

    /// The first block that the task attends to.
    pub(super) fn first_block(&self) -> Range<usize> {
        let mut blocks = self.blocks(self.task.segments.start);
        blocks.next().unwrap_or_default()
    }

    /// The place of each query row: its key head, its number under this head, and its index
    /// in the task's working memory.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<'_> {
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

    pub(super) fn view<'a>(&'a self, task: &'a Task) -> View<'a> {
        let row = self.inputs.rows[task.row];
        let rows = task.queries.len() * self.group();
        View {
            task,
            row,
            pages: &self.inputs.pages(self.cache.shape.group)[row.pages_start as usize..],
            rows,
            apart: rows.next_multiple_of(self.unit),
            seen: seen_by_any(self.shape, &row, &task.queries),
            seen_by_all: seen_by_all(self.shape, &row, &task.queries),
        }
    }

    /// Positions that the queries of the task's row see.
    pub(super) fn sight(&self, view: &View<'_>) -> Sight<'_> {
        Sight::new(self.shape, &view.row, &self.inputs.masks)
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

    /// Words of a packed query row.
    pub(super) fn query_words(&self) -> usize {
        let head_dim = self.shape.head_dim;
        match self.integers {
            Some(_) => query_words(head_dim),
            None => self.tiles.input.len(head_dim),
        }
    }

    /// The order in which sums hold columns.
    pub(super) fn order(&self) -> Order {
        match (self.integers, self.tiled, self.direct) {
            (Some(integers), ..) => integers.order,
            (None, Some(_), _) => Order::Fours,
            (None, None, Some(direct)) => direct.order,
            (None, None, None) => Order::Plain,
        }
    }
}

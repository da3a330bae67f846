//! Cuts a batch's attention into tasks for threads to take.
//!
//! A task is some queries of one request under several neighbouring key heads: as many as
//! fit and leave all threads work. The heads' keys lie side by side, and memory is fastest
//! where it is read in order. Where whole tasks can't keep all threads equally busy, as with
//! one long request, the dearest tasks are also cut by segments of positions
//! (flash-decoding: Dao et al., 2023). Segments are computed apart and then folded in order.
//! Where that isn't enough, tasks take fewer heads. Cuts never show in the result, because
//! segments always begin from nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_backend::{AttentionShape, Row};

use super::visible::seen_by_any;

/// Positions folded into the total at once.
pub(crate) const SEGMENT: usize = 512;
/// The most query rows of a task. Their sums stay in the second-level cache while keys and
/// values stream past once.
pub(crate) const MAX_ROWS: usize = 192;
/// The fewest rows of a task that a cut of queries leaves: each task reads and packs all
/// positions that it sees.
const MIN_ROWS: usize = 48;
/// Tasks wanted per thread, so that uneven tasks even out.
const TASKS_PER_THREAD: usize = 4;
/// Cost of reading and packing a position, in rows: about that of attending this many rows
/// to the position.
const PACKING_ROWS: usize = 8;
/// Excess over the average thread's work, in sixteenths, from which on positions are cut.
const UNEVEN: usize = 2;
/// Floats kept for tasks whose positions are cut: 64 MiB.
const MAX_PARTIALS: usize = 16 << 20;

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

/// Plans of a pass, one for each shape of its layers.
pub(crate) struct Plans {
    threads: usize,
    plans: Vec<Plan>,
    /// Number of the plan that was asked for last.
    last: usize,
}

/// Layers whose tasks are cut alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layers {
    pub shape: AttentionShape,
    pub tiling: Tiling,
    /// Floats of a query row's partial result.
    pub partial: usize,
}

/// Tasks of one batch for layers of one shape.
pub(crate) struct Plan {
    layers: Layers,
    /// The staged pass that the plan was made for.
    pass: u64,
    rows: Vec<Row>,
    pub tasks: Vec<Task>,
    /// Each thread's part of the cost, as far as costs can be told beforehand.
    loads: Vec<usize>,
    pub joins: Vec<Join>,
    /// Floats that the joins' segments take.
    pub partials: usize,
    /// Cost of all tasks, in (query row, position) pairs.
    pub cost: usize,
}

/// Layout of query rows in a task's working memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Rows of a tile.
    pub height: usize,
    /// Multiple of rows that each head takes, so that its rows begin together.
    pub unit: usize,
    /// Most rows of a head with which a task takes the neighbouring heads too: more rows
    /// wait for arithmetic rather than memory.
    pub together: usize,
}

/// Tasks that compute segments of the same queries.
#[derive(Debug)]
pub(crate) struct Join {
    /// Start of the first segment's partial result.
    pub start: usize,
    /// All segments that the queries see.
    pub segments: Range<usize>,
    tasks: usize,
    left: AtomicUsize,
}

impl Join {
    /// Counts a task of this join as done; returns true for the last one.
    pub(crate) fn done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Makes the join wait for all its tasks again.
    fn reset(&self) {
        self.left.store(self.tasks, Ordering::Relaxed);
    }
}

impl Plans {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            plans: Vec::new(),
            last: 0,
        }
    }

    /// Returns the plan for `rows`, the rows of the staged pass number `pass`. It is made when
    /// the first of these layers asks, and then kept for the pass; its joins wait for all of
    /// their tasks. Example: in a pass of 24
    /// layers, of which every second one has a window, two plans are made.
    pub(crate) fn of(&mut self, pass: u64, layers: Layers, rows: &[Row]) -> &mut Plan {
        let known = self.plans.iter().position(|plan| plan.layers == layers);
        self.last = known.unwrap_or_else(|| {
            self.plans.push(Plan::new(layers, self.threads));
            self.plans.len() - 1
        });
        let plan = &mut self.plans[self.last];
        if plan.pass != pass {
            plan.pass = pass;
            plan.make(rows);
        }
        plan.joins.iter().for_each(Join::reset);
        plan
    }

    /// Returns the tasks of the plan that was asked for last.
    pub(crate) fn last_tasks(&self) -> &[Task] {
        self.plans.get(self.last).map_or(&[], |plan| &plan.tasks)
    }
}

impl Plan {
    fn new(layers: Layers, threads: usize) -> Self {
        Self {
            layers,
            pass: 0,
            rows: Vec::new(),
            tasks: Vec::new(),
            loads: vec![0; threads],
            joins: Vec::new(),
            partials: 0,
            cost: 0,
        }
    }

    /// Makes the plan for these rows.
    fn make(&mut self, rows: &[Row]) {
        let Layers {
            shape,
            tiling,
            partial,
        } = self.layers;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        let group = shape.heads / shape.kv_heads;
        let mut heads = self.heads_that_leave_work(shape.kv_heads);
        loop {
            self.joins.clear();
            self.partials = 0;
            self.cut_queries(&shape, tiling, heads);
            let costs = self.tasks.iter().map(|task| self.cost_of(task, group));
            self.cost = costs.sum();
            if self.is_uneven(group) {
                self.cut_positions(group, partial);
            }
            if heads == 1 || !self.is_uneven(group) {
                break;
            }
            heads = heads.div_ceil(2);
        }
    }

    /// Largest number of key heads of a task with which the segments are enough tasks for
    /// all threads.
    fn heads_that_leave_work(&self, kv_heads: usize) -> usize {
        let shape = &self.layers.shape;
        let segments = |row: &Row| segments(shape, row, &(0..row.q_len as usize)).len();
        let segments: usize = self.rows.iter().map(segments).sum();
        let parts = self.tasks_wanted().div_ceil(segments.max(1));
        (kv_heads / parts).max(1)
    }

    fn tasks_wanted(&self) -> usize {
        self.loads.len() * TASKS_PER_THREAD
    }

    /// Returns true if a thread would have much more to do than the average one.
    fn is_uneven(&mut self, group: usize) -> bool {
        16 * self.longest(group) * self.loads.len() > (16 + UNEVEN) * self.cost
    }

    /// Cuts rows into whole tasks of at most `most_heads` key heads.
    fn cut_queries(&mut self, shape: &AttentionShape, tiling: Tiling, most_heads: usize) {
        let group = shape.heads / shape.kv_heads;
        let tokens: usize = self.rows.iter().map(|row| row.q_len as usize).sum();
        let wanted = (tokens * shape.heads).div_ceil(self.tasks_wanted());
        let height = wanted.max(MIN_ROWS).next_multiple_of(tiling.height);
        let queries = (height.min(MAX_ROWS) / group).max(1);
        self.tasks.clear();
        for (index, row) in self.rows.iter().enumerate() {
            let most = (row.q_len as usize).min(queries);
            let fit = MAX_ROWS / (most * group).next_multiple_of(tiling.unit).max(1);
            let heads = match row.mask {
                None if most * group <= tiling.together => {
                    even(shape.kv_heads, most_heads.min(fit).max(1))
                }
                _ => 1,
            };
            for head in (0..shape.kv_heads).step_by(heads) {
                for from in (0..row.q_len as usize).step_by(queries) {
                    let to = (row.q_len as usize).min(from + queries);
                    self.tasks.push(Task {
                        row: index,
                        heads: head..shape.kv_heads.min(head + heads),
                        queries: from..to,
                        segments: segments(shape, row, &(from..to)),
                        join: None,
                    });
                }
            }
        }
    }

    /// Cuts by positions the tasks that are a large part of a thread's share.
    fn cut_positions(&mut self, group: usize, partial: usize) {
        let share = (self.cost / self.tasks_wanted()).max(1);
        let whole = self.tasks.len();
        for index in 0..whole {
            let task = self.tasks[index].clone();
            let segments = task.segments.len();
            let parts = self.cost_of(&task, group).div_ceil(share).min(segments);
            let partials = segments * task.heads.len() * task.queries.len() * group * partial;
            // Idle threads cost less than running out of memory.
            if parts < 2 || self.partials + partials > MAX_PARTIALS {
                self.tasks.push(task);
                continue;
            }
            let join = Join {
                start: self.partials,
                segments: task.segments.clone(),
                tasks: parts,
                left: AtomicUsize::new(parts),
            };
            self.partials += partials;
            self.tasks.extend((0..parts).map(|part| {
                let first = task.segments.start;
                let share = crate::partition::share(segments, parts, part);
                Task {
                    segments: first + share.start..first + share.end,
                    join: Some(self.joins.len()),
                    ..task.clone()
                }
            }));
            self.joins.push(join);
        }
        self.tasks.drain(..whole);
    }

    fn cost_of(&self, task: &Task, group: usize) -> usize {
        let Range { start, end } = task.segments;
        let seen = seen_by_any(&self.layers.shape, &self.rows[task.row], &task.queries);
        let positions = (end * SEGMENT).min(seen.end) - (start * SEGMENT).max(seen.start);
        task.heads.len() * (task.queries.len() * group + PACKING_ROWS) * positions
    }

    /// The cost of the busiest thread's part when each thread takes the next task as it is
    /// done with one.
    fn longest(&mut self, group: usize) -> usize {
        self.loads.fill(0);
        for index in 0..self.tasks.len() {
            let cost = self.cost_of(&self.tasks[index], group);
            if let Some(load) = self.loads.iter_mut().min() {
                *load += cost;
            }
        }
        self.loads.iter().copied().max().unwrap_or(0)
    }
}

/// The size, `most` or less, of parts of `all` that are about equal.
fn even(all: usize, most: usize) -> usize {
    all.div_ceil(all.div_ceil(most))
}

/// Upper bound of the floats of joins' segments in a pass of `tokens` tokens. A query row
/// and segment take `partial`.
pub(crate) fn most_partials(
    threads: usize,
    shape: &AttentionShape,
    tokens: usize,
    positions: usize,
    partial: usize,
) -> usize {
    if threads == 1 {
        return 0;
    }
    let segments = positions.div_ceil(SEGMENT);
    let rows = tokens.saturating_mul(shape.heads);
    rows.saturating_mul(segments * partial).min(MAX_PARTIALS)
}

/// Segments with positions that `queries` of `row` may see.
fn segments(shape: &AttentionShape, row: &Row, queries: &Range<usize>) -> Range<usize> {
    let seen = seen_by_any(shape, row, queries);
    seen.start / SEGMENT..seen.end.div_ceil(SEGMENT)
}

#[cfg(test)]
mod tests;

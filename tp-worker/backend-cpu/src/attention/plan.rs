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

use super::task::{SEGMENT, Task};

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

/// Tasks of one batch. All layers of a pass have the same tasks.
pub(crate) struct Plan {
    made_for: Option<(AttentionShape, Tiling)>,
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
    pub segments: usize,
    tasks: usize,
    left: AtomicUsize,
}

impl Join {
    /// Counts a task of this join as done; returns true for the last one.
    pub(crate) fn done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Makes the join wait for all its tasks again.
    pub(crate) fn reset(&self) {
        self.left.store(self.tasks, Ordering::Relaxed);
    }
}

impl Plan {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            made_for: None,
            rows: Vec::new(),
            tasks: Vec::new(),
            loads: vec![0; threads],
            joins: Vec::new(),
            partials: 0,
            cost: 0,
        }
    }

    /// Makes the plan for these rows, unless the last plan was made for the same. A query
    /// row's partial result takes `partial` floats.
    pub(crate) fn make(
        &mut self,
        shape: &AttentionShape,
        rows: &[Row],
        tiling: Tiling,
        partial: usize,
    ) {
        let made_for = Some((*shape, tiling));
        if self.made_for == made_for && self.rows == rows {
            return;
        }
        self.made_for = made_for;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        let group = shape.heads / shape.kv_heads;
        let mut heads = self.heads_that_leave_work(shape.kv_heads);
        loop {
            self.joins.clear();
            self.partials = 0;
            self.cut_queries(shape, tiling, heads);
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
        let segments = |row: &Row| seen(row, row.q_len as usize).div_ceil(SEGMENT);
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
                        segments: 0..seen(row, to).div_ceil(SEGMENT),
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
            let segments = task.segments.end;
            let parts = self.cost_of(&task, group).div_ceil(share).min(segments);
            let partials = segments * task.heads.len() * task.queries.len() * group * partial;
            // Idle threads cost less than running out of memory.
            if parts < 2 || self.partials + partials > MAX_PARTIALS {
                self.tasks.push(task);
                continue;
            }
            let join = Join {
                start: self.partials,
                segments,
                tasks: parts,
                left: AtomicUsize::new(parts),
            };
            self.partials += partials;
            self.tasks.extend((0..parts).map(|part| Task {
                segments: crate::partition::share(segments, parts, part),
                join: Some(self.joins.len()),
                ..task.clone()
            }));
            self.joins.push(join);
        }
        self.tasks.drain(..whole);
    }

    fn cost_of(&self, task: &Task, group: usize) -> usize {
        let Range { start, end } = task.segments;
        let seen = seen(&self.rows[task.row], task.queries.end);
        let positions = (end * SEGMENT).min(seen) - start * SEGMENT;
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

/// Upper bound of the positions that the queries before `end` see; a mask may hide some.
fn seen(row: &Row, end: usize) -> usize {
    let new = if row.mask.is_some() {
        row.q_len as usize
    } else {
        end
    };
    row.kv_len as usize + new
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILING: Tiling = Tiling {
        height: 12,
        unit: 1,
        together: 16,
    };
    /// Tiling in which the rows of a head fill tiles.
    const WHOLE: Tiling = Tiling {
        height: 12,
        unit: 16,
        together: MAX_ROWS,
    };

    fn plan(threads: usize, kv_heads: usize, rows: &[(u32, u32)]) -> Plan {
        plan_by(TILING, threads, kv_heads, rows)
    }

    fn plan_by(tiling: Tiling, threads: usize, kv_heads: usize, rows: &[(u32, u32)]) -> Plan {
        let shape = AttentionShape {
            heads: 4 * kv_heads,
            kv_heads,
            head_dim: 64,
            scale: 0.125,
        };
        let rows: Vec<Row> = rows
            .iter()
            .map(|&(q_len, kv_len)| Row {
                start: 0,
                q_len,
                kv_len,
                pages_start: 0,
                mask: None,
            })
            .collect();
        let mut plan = Plan::new(threads);
        plan.make(&shape, &rows, tiling, 66);
        plan
    }

    /// The busiest thread's part of the whole, in hundredths of the average.
    fn largest(plan: &mut Plan) -> usize {
        100 * plan.longest(4) * plan.loads.len() / plan.cost
    }

    #[test]
    fn what_divides_evenly_stays_whole() {
        for (threads, kv_heads, requests, tasks) in [(1, 3, 1, 1), (2, 2, 8, 8), (4, 8, 16, 16)] {
            let mut plan = plan(threads, kv_heads, &vec![(1, 4_000); requests]);
            assert_eq!((plan.joins.len(), plan.tasks.len()), (0, tasks));
            assert_eq!(largest(&mut plan), 100);
        }
        // A segment cannot be cut, so heads are.
        let mut plan = plan(2, 8, &[(1, 400)]);
        assert_eq!((plan.joins.len(), plan.tasks.len()), (0, 8));
        assert_eq!(largest(&mut plan), 100);
    }

    #[test]
    fn a_long_request_is_cut_by_positions() {
        for (threads, kv_heads) in [(2, 1), (2, 3), (8, 2), (7, 1)] {
            for q_len in [1, 8] {
                let mut plan = plan(threads, kv_heads, &[(q_len, 32_000)]);
                assert!(plan.tasks.iter().all(|task| task.join.is_some()));
                assert!(largest(&mut plan) <= 125, "{threads} {kv_heads}");
            }
        }
    }

    #[test]
    fn cut_tasks_cover_every_position_once() {
        for tiling in [TILING, WHOLE] {
            let rows = [(1, 9_000), (3, 100), (1, 700), (300, 1_000)];
            let mut plan = plan_by(tiling, 5, 3, &rows);
            let seen = |row: usize, head, query| -> Vec<usize> {
                let tasks = plan.tasks.iter();
                let tasks = tasks.filter(|task| task.row == row && task.heads.contains(&head));
                let tasks = tasks.filter(|task| task.queries.contains(&query));
                tasks.flat_map(|task| task.segments.clone()).collect()
            };
            for (row, (q_len, kv_len)) in rows.into_iter().enumerate() {
                for head in 0..3 {
                    for query in 0..q_len as usize {
                        let found = seen(row, head, query);
                        assert!(found.iter().copied().eq(0..found.len()));
                        assert!(found.len() * SEGMENT > kv_len as usize + query);
                    }
                }
            }
            assert!(largest(&mut plan) <= 125);
        }
    }

    #[test]
    fn heads_stay_together_as_far_as_threads_have_work() {
        let heads = |tiling, threads, kv_heads, rows: &[(u32, u32)]| {
            let mut plan = plan_by(tiling, threads, kv_heads, rows);
            assert!(largest(&mut plan) <= 113, "{threads} {kv_heads} {rows:?}");
            plan.tasks.iter().map(|task| task.heads.len()).max()
        };
        let requests = |count| vec![(1, 400); count];
        for tiling in [TILING, WHOLE] {
            assert_eq!(heads(tiling, 2, 8, &[(1, 9_000)]), Some(8));
            assert_eq!(heads(tiling, 2, 8, &requests(8)), Some(8));
            assert_eq!(heads(tiling, 2, 8, &requests(4)), Some(4));
            assert_eq!(heads(tiling, 2, 8, &requests(1)), Some(1));
            // Rows that fill a task alone.
            assert_eq!(heads(tiling, 2, 8, &[(512, 9_000)]), Some(1));
        }
        // Tasks take fewer heads if there are slightly more requests than wanted tasks.
        for (threads, requests) in [(16, 10), (8, 5), (16, 65), (8, 33), (4, 17)] {
            assert!(heads(TILING, threads, 8, &vec![(1, 400); requests]) < Some(8));
        }
        // 12 heads fit if each takes 16 rows, and 6 if each takes 32: parts are about equal.
        assert_eq!(heads(WHOLE, 2, 32, &requests(8)), Some(11));
        assert_eq!(heads(WHOLE, 2, 8, &[(8, 9_000)]), Some(4));
        assert_eq!(heads(TILING, 2, 8, &[(4, 9_000)]), Some(8));
        assert_eq!(heads(TILING, 2, 8, &[(5, 9_000)]), Some(1));
    }

    #[test]
    fn layers_of_a_pass_share_a_plan() {
        let mut plan = plan(2, 1, &[(1, 9_000)]);
        let shape = plan.made_for.unwrap().0;
        let rows = plan.rows.clone();
        plan.tasks.clear();
        plan.make(&shape, &rows, TILING, 66);
        assert!(plan.tasks.is_empty(), "the same rows are not planned again");
        let mut other = rows;
        other[0].kv_len += 1;
        plan.make(&shape, &other, TILING, 66);
        assert!(!plan.tasks.is_empty());
    }
}

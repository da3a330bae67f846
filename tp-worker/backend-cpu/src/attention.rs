//! Paged attention of a ragged batch.

mod cache;
mod softmax;
mod task;

use lockstep_backend::{AttentionShape, BackendError, Batch};

use crate::gemm::{Element, select};
use crate::isa::Isa;
use crate::partition::Shared;
use crate::pool::Pool;

pub use cache::CpuKvCache;
use task::{Call, Scratch, Task};

/// The most query rows of a task: their sums stay in the second-level cache
/// while keys and values stream past once.
const MAX_ROWS: usize = 192;
/// Tasks wanted per thread, so that uneven ones even out.
const TASKS_PER_THREAD: usize = 4;
/// Multiply-adds not worth waking a thread for.
const ALONE: usize = 1 << 16;

/// Buffers that outlive a call.
pub(crate) struct Attention {
    tasks: Vec<Task>,
    /// Where each thread's tasks end.
    ends: Vec<usize>,
    scratch: Vec<Scratch>,
}

impl Attention {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            tasks: Vec::new(),
            ends: Vec::with_capacity(threads),
            scratch: (0..threads).map(|_| Scratch::new()).collect(),
        }
    }

    /// Stores the batch's keys and values, then attends; see
    /// [`lockstep_backend::Backend::attention`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub(crate) fn run(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        compute: Element,
        cache: &mut CpuKvCache,
        layer: usize,
        qkv: &[f32],
        shape: &AttentionShape,
        batch: &Batch<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        cache.write(pool, isa, layer, qkv, shape.qkv_width(), batch.cells);
        let element = cache.element(compute);
        let tiles = select(isa, element);
        let cost = self.plan(pool.threads(), tiles.rows(), shape, batch);
        let rows = MAX_ROWS.max(shape.heads / shape.kv_heads);
        for scratch in &mut self.scratch {
            scratch.grow(rows, shape.head_dim)?;
        }
        let out = Shared::new(out);
        let call = Call {
            isa,
            element,
            tiles,
            cache,
            layer,
            qkv,
            shape,
            batch,
            out,
        };
        if cost * shape.head_dim <= ALONE {
            let scratch = &mut self.scratch[0];
            self.tasks.iter().for_each(|task| call.run(task, scratch));
            return Ok(());
        }
        let scratch = Shared::new(&mut self.scratch);
        pool.run(|thread| {
            let start = if thread == 0 {
                0
            } else {
                self.ends[thread - 1]
            };
            // SAFETY: each thread takes its own scratch.
            for scratch in unsafe { scratch.slice(thread..thread + 1) } {
                for task in &self.tasks[start..self.ends[thread]] {
                    call.run(task, scratch);
                }
            }
        });
        Ok(())
    }

    /// Cuts the batch into tasks and deals them out in runs of about equal
    /// cost; returns the cost in (query row, position) pairs.
    fn plan(
        &mut self,
        threads: usize,
        tile_rows: usize,
        shape: &AttentionShape,
        batch: &Batch<'_>,
    ) -> usize {
        let group = shape.heads / shape.kv_heads;
        let all = batch.tokens.len() * shape.heads;
        let wanted = all.div_ceil(threads * TASKS_PER_THREAD);
        let queries = (wanted.next_multiple_of(tile_rows).min(MAX_ROWS) / group).max(1);
        self.tasks.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            for head in 0..shape.kv_heads {
                for from in (0..row.q_len as usize).step_by(queries) {
                    let to = (row.q_len as usize).min(from + queries);
                    self.tasks.push(Task {
                        row: index,
                        head,
                        queries: from..to,
                    });
                }
            }
        }
        // Repacking a position costs about as much as attending two rows to it.
        let cost = |task: &Task| {
            let seen = batch.rows[task.row].kv_len as usize + task.queries.end;
            (task.queries.len() * group + 2) * seen
        };
        let total: usize = self.tasks.iter().map(cost).sum();
        self.ends.clear();
        let mut done = 0;
        for (index, task) in self.tasks.iter().enumerate() {
            let cost = cost(task);
            // A task belongs to the thread whose share its middle falls into.
            while self.ends.len() + 1 < threads
                && (2 * done + cost) * threads >= 2 * total * (self.ends.len() + 1)
            {
                self.ends.push(index);
            }
            done += cost;
        }
        self.ends.resize(threads, self.tasks.len());
        total
    }
}

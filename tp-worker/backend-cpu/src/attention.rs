//! Paged attention of a ragged batch.

mod block;
mod cache;
mod call;
mod cells;
mod direct;
mod integers;
mod panels;
mod plan;
mod prefetch;
mod quantize;
mod scratch;
mod softmax;
mod task;
mod tiled;
mod transpose;
mod tree;
mod visible;

use lockstep_backend::{AttentionShape, BackendError, PassShape};

use crate::amx;
use crate::gemm::{Element, PANEL, Tiles, select};
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::memory::{Buffer, grown};
use crate::partition::Shared;
use crate::pool::Pool;

pub use cache::CpuKvCache;
use call::Call;
use integers::Integers;
use plan::{Layers, MAX_ROWS, Plans, Tiling};
use scratch::{Scratch, partial_len};

/// Multiply-adds up to which the caller works alone: they are not worth waking a thread.
const ALONE: usize = 1 << 17;

/// Most heads of latents that are taken together.
const SHARING: usize = 32;

/// Returns the shape whose key heads tasks are cut by. All heads of latents have one key; tasks take
/// some of the heads each, as if these had a key of their own, so that a single token is work for
/// several threads.
fn shared_out(shape: &AttentionShape) -> AttentionShape {
    let heads = shape.heads;
    let divides = |together: &usize| heads.is_multiple_of(*together);
    match shape.latent {
        None => *shape,
        Some(_) => AttentionShape {
            kv_heads: heads / (1..=SHARING).rev().find(divides).unwrap_or(1),
            ..*shape
        },
    }
}

/// Upper bound of a task's query rows: whole tiles of any height.
fn task_rows(shape: &AttentionShape) -> usize {
    let shape = shared_out(shape);
    MAX_ROWS.max((shape.heads / shape.kv_heads).next_multiple_of(PANEL))
}

/// Bytes of one thread's working memory for passes over these shapes.
pub(crate) fn scratch_bytes<'a>(shapes: impl Iterator<Item = &'a AttentionShape>) -> usize {
    Scratch::bytes(shapes.map(|shape| (task_rows(shape), shape.head_dim)))
}

/// Upper bound of the floats kept for tasks that are cut by positions.
pub(crate) fn most_partials(threads: usize, pass: &PassShape) -> usize {
    let (tokens, positions) = (pass.tokens, pass.positions);
    let most = |shape: &AttentionShape| {
        let partial = partial_len(shape.head_dim);
        plan::most_partials(threads, shape, tokens, positions, partial)
    };
    grown(pass.attention.iter().map(most).max().unwrap_or(0))
}

/// Shape of the tasks that a call's attention was cut into.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttentionTasks {
    /// Largest number of key heads that one task took together.
    pub heads: usize,
    /// Largest number of key heads in one task whose positions other tasks attended to as
    /// well; 0 if there was no such task.
    pub joined_heads: usize,
}

/// Returns the way in which rows of queries are cut into tasks.
fn tiling(isa: Isa, tiles: &Tiles, integers: Option<&Integers>, cache: &CpuKvCache) -> Tiling {
    let (unit, together) = match tiled::fits(isa, tiles, cache) {
        true => (tiled::ROWS, MAX_ROWS),
        false => (1, tiled::ROWS),
    };
    Tiling {
        height: tiles.rows(),
        unit: integers.map_or(unit, |integers| integers.unit),
        together,
    }
}

/// Buffers that outlive a call.
pub(crate) struct Attention {
    plans: Plans,
    scratch: Vec<Scratch>,
    /// Results of segments that are computed apart.
    partials: Buffer<f32>,
}

impl Attention {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            plans: Plans::new(threads),
            scratch: (0..threads).map(|_| Scratch::new()).collect(),
            partials: Buffer::empty(),
        }
    }

    /// Bytes of working memory that earlier calls have allocated.
    pub(crate) fn bytes(&self) -> usize {
        let threads: usize = self.scratch.iter().map(Scratch::held).sum();
        threads + self.partials.bytes()
    }

    /// Describes the tasks of the last call.
    pub(crate) fn tasks(&self) -> AttentionTasks {
        let most = |joined: bool| {
            let tasks = self.plans.last_tasks().iter();
            let tasks = tasks.filter(|task| !joined || task.join.is_some());
            tasks.map(|task| task.heads.len()).max().unwrap_or(0)
        };
        AttentionTasks {
            heads: most(false),
            joined_heads: most(true),
        }
    }

    /// Stores the batch's keys and values, then attends; see
    /// [`lockstep_backend::Ops::attention`].
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
        sinks: Option<&[f32]>,
        inputs: &CpuInputs,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let shape = &shared_out(shape);
        let cells = inputs.cells(cache.shape.group);
        if !shape.reads_only {
            cache.write(pool, isa, layer, qkv, shape.qkv_width(), cells);
        }
        let element = cache.element(compute);
        let tiles = select(isa, element);
        let integers = integers::select(isa, tiles, cache);
        let tiled = tiled::select(isa, tiles, cache);
        let tiling = tiling(isa, tiles, integers, cache);
        let layers = Layers {
            shape: *shape,
            tiling,
            partial: partial_len(shape.head_dim),
        };
        let plan = self.plans.of(inputs.pass, layers, &inputs.rows);
        self.partials.grow(plan.partials, "partial attention")?;
        for scratch in &mut self.scratch {
            scratch.grow(task_rows(shape), shape.head_dim)?;
        }
        let call = Call {
            isa,
            element,
            tiles,
            direct: integers.map_or_else(|| direct::select(isa, tiles, cache), |_| None),
            integers,
            tiled,
            unit: tiling.unit,
            cache,
            layer,
            qkv,
            shape,
            sinks,
            inputs,
            joins: &plan.joins,
            partials: Shared::new(&mut self.partials),
            out: Shared::new(out),
        };
        let tasks = &plan.tasks;
        let scratch = Shared::new(&mut self.scratch);
        let run = |thread: usize, index: usize| {
            // SAFETY: a thread has its own scratch and one task at a time.
            let scratch = unsafe { scratch.slice(thread..thread + 1) };
            call.run(&tasks[index], tasks.get(index + 1), &mut scratch[0]);
        };
        if plan.cost * shape.head_dim <= ALONE {
            let _tiles = amx::Release;
            (0..tasks.len()).for_each(|index| run(0, index));
        } else {
            pool.for_chunks(tasks.len(), run);
        }
        Ok(())
    }
}

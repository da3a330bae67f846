//! Sums over two ranks in this process, against the matrix product before each sum: the sum
//! alone, and the fused operation that models use.

use std::thread;

use anyhow::Context as _;
use lockstep_backend::{Axis, Holds, Linear, MatrixRole, RmsNorm, RowParallel};
use lockstep_collective::{Options, SharedMemory, local_group_with};
use lockstep_devices::{Clock, Device};
use serde_json::json;

use super::setup::{Setup, Times, Weights, filled, load};
use super::shape::{Matrix, Shape};
use crate::report::Table;

const RANKS: usize = 2;
const TOKENS: [usize; 5] = [1, 8, 32, 128, 512];
/// Matrices that a measurement of many tokens goes through. Few are enough, as it is bound
/// by arithmetic.
const FEW_LAYERS: usize = 2;

/// Seconds for one number of tokens.
struct Measured {
    product: Times,
    /// The sum after the product, alone.
    sum: Times,
    /// Product, sum, residual and norm in one operation.
    fused: Times,
}

/// Fills the table for the two sums of a layer.
pub fn measure<B: Device>(
    setup: &Setup,
    shape: &Shape,
    weights: Weights,
    table: &mut Table,
) -> anyhow::Result<()> {
    let [_, o, _, down] = shape.layer();
    // The head count of models that can be split in two is even.
    for whole in [o, down]
        .into_iter()
        .filter(|matrix| matrix.cols.is_multiple_of(RANKS))
    {
        let shard = Matrix {
            cols: whole.cols / RANKS,
            ..whole
        };
        let all = both_ranks::<B>(setup, weights, shard)?;
        for (tokens, measured) in TOKENS.into_iter().zip(all) {
            let Measured {
                product,
                sum,
                fused,
            } = measured;
            table.row(vec![
                json!(format!("{} {} -> {}", shard.name, shard.cols, shard.rows)),
                json!(shape.name),
                json!(weights.name()),
                json!(tokens),
                json!(product.median * 1e6),
                json!(sum.median * 1e6),
                json!(fused.median * 1e6),
                json!(fused.min * 1e6),
                json!(fused.max * 1e6),
                json!(fused.median / product.median),
            ]);
        }
    }
    Ok(())
}

/// The table that [`measure`] fills.
pub fn table() -> Table {
    Table::new(
        "Sums over 2 ranks in this process, and the product they follow",
        &[
            "after",
            "shape",
            "weights",
            "tokens",
            "product us",
            "sum us",
            "fused us",
            "fused min",
            "fused max",
            "fused / product",
        ],
    )
}

/// Rank 0's times for each number of tokens.
fn both_ranks<B: Device>(
    setup: &Setup,
    weights: Weights,
    shard: Matrix,
) -> anyhow::Result<Vec<Measured>> {
    let threads = (setup.threads / RANKS).max(1);
    let options = Options {
        // Room for the longest step, as in workers.
        max_elements: shard.rows * TOKENS[TOKENS.len() - 1],
        threads_per_rank: threads,
        ..Options::default()
    };
    let members = local_group_with(RANKS, &options);
    let run = |member: SharedMemory| rank::<B>(setup, weights, shard, threads, member);
    let ranks: Vec<_> = thread::scope(|scope| {
        let spawned: Vec<_> = members
            .into_iter()
            .map(|member| scope.spawn(|| run(member)))
            .collect();
        spawned
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut first = None;
    for rank in ranks {
        let all = rank.ok().context("a rank panicked")??;
        first.get_or_insert(all);
    }
    first.context("there is no rank")
}

fn rank<B: Device>(
    setup: &Setup,
    weights: Weights,
    shard: Matrix,
    threads: usize,
    member: SharedMemory,
) -> anyhow::Result<Vec<Measured>> {
    let mut backend: B = setup.rank(weights, threads, Box::new(member))?;
    let format = weights.format(MatrixRole::Projection);
    let mut matrices: Vec<B::Matrix> = Vec::new();
    let mut bytes = 0;
    while bytes < setup.working_set / RANKS {
        let matrix = load(&mut backend, shard, format)?;
        bytes += backend.matrix_bytes(&matrix);
        matrices.push(matrix);
    }
    let mut rank = Rank {
        // Ranks wait for each other, so the time that passes counts.
        clock: Clock::for_threads(RANKS * threads),
        norm: backend.load_vector(&vec![1.0; shard.rows])?,
        backend,
        matrices,
        shard,
    };
    TOKENS
        .into_iter()
        .map(|tokens| rank.measure(setup.repeat, tokens))
        .collect()
}

struct Rank<B: Device> {
    clock: Clock,
    backend: B,
    matrices: Vec<B::Matrix>,
    norm: B::Vector,
    shard: Matrix,
}

impl<B: Device> Rank<B> {
    fn measure(&mut self, repeat: usize, tokens: usize) -> anyhow::Result<Measured> {
        let Self {
            clock,
            backend,
            matrices,
            norm,
            shard,
        } = self;
        let x = filled(backend, tokens, shard.cols, Holds::Operand)?;
        let mut delta = backend.tensor(tokens, shard.rows, Holds::Sum)?;
        let mut residual = backend.tensor(tokens, shard.rows, Holds::Sum)?;
        let mut out = backend.tensor(tokens, shard.rows, Holds::Operand)?;
        let count = match tokens {
            0..=32 => matrices.len(),
            _ => FEW_LAYERS.min(matrices.len()),
        };
        let mut all = [const { Vec::new() }; 3];
        for round in 0..=repeat {
            let (mut product, mut sum) = (0.0, 0.0);
            for matrix in matrices.iter().take(count) {
                let start = clock.seconds();
                backend.matmul(&x, Linear::unbiased(matrix), &mut delta);
                let middle = clock.seconds();
                backend.all_reduce(Axis::World, &mut delta)?;
                product += middle - start;
                sum += clock.seconds() - middle;
            }
            let start = clock.seconds();
            for weight in matrices.iter().take(count) {
                let linear = RowParallel {
                    axis: Axis::World,
                    part: Linear { weight, bias: None },
                };
                let norm = RmsNorm {
                    weight: norm,
                    eps: 1e-5,
                };
                let (residual, delta) = (&mut residual, &mut delta);
                backend.matmul_end_block(&x, linear, residual, delta, norm.into(), &mut out)?;
            }
            let fused = clock.seconds() - start;
            // The first round warms up.
            if round > 0 {
                for (times, seconds) in all.iter_mut().zip([product, sum, fused]) {
                    times.push(seconds / count as f64);
                }
            }
        }
        let [product, sum, fused] = all.map(Times::of);
        Ok(Measured {
            product,
            sum,
            fused,
        })
    }
}

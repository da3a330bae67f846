//! Sums over two ranks in this process, against the matrix product that each follows.

use std::thread;

use anyhow::Context as _;
use lockstep_backend::{Backend, MatrixRole};
use lockstep_backend_cpu::CpuMatrix;
use lockstep_backend_cpu::limits::Clock;
use lockstep_collective::{Options, SharedMemory, local_group_with};
use serde_json::json;

use super::setup::{Setup, Times, Weights, fill, load};
use super::shape::{Matrix, Shape};
use crate::report::Table;

const RANKS: usize = 2;
const TOKENS: [usize; 5] = [1, 8, 32, 128, 512];
/// Bytes of weights that a measurement of many tokens goes through: it is
/// bound by arithmetic.
const FEW_LAYERS: usize = 2;

/// Seconds of the product and of the sum after it.
type Pair = (Times, Times);

/// Fills the table for the two sums of a layer.
pub fn measure(
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
        let pairs = both_ranks(setup, weights, shard)?;
        for (tokens, (product, sum)) in TOKENS.into_iter().zip(pairs) {
            table.row(vec![
                json!(format!("{} {} -> {}", shard.name, shard.cols, shard.rows)),
                json!(shape.name),
                json!(weights.name()),
                json!(tokens),
                json!(product.median * 1e6),
                json!(sum.median * 1e6),
                json!(sum.min * 1e6),
                json!(sum.max * 1e6),
                json!(sum.median / product.median),
            ]);
        }
    }
    Ok(())
}

/// The table that [`measure`] fills.
pub fn table() -> Table {
    Table::new(
        "All-reduce between 2 ranks in this process, and the product it follows",
        &[
            "after",
            "shape",
            "weights",
            "tokens",
            "product us",
            "sum us",
            "sum min",
            "sum max",
            "sum / product",
        ],
    )
}

/// Rank 0's times for each number of tokens.
fn both_ranks(setup: &Setup, weights: Weights, shard: Matrix) -> anyhow::Result<Vec<Pair>> {
    let threads = (setup.threads / RANKS).max(1);
    let options = Options {
        threads_per_rank: threads,
        ..Options::default()
    };
    let members = local_group_with(RANKS, &options);
    let run = |member: SharedMemory| rank(setup, weights, shard, threads, member);
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
        let pairs = rank.ok().context("a rank panicked")??;
        first.get_or_insert(pairs);
    }
    first.context("there is no rank")
}

fn rank(
    setup: &Setup,
    weights: Weights,
    shard: Matrix,
    threads: usize,
    member: SharedMemory,
) -> anyhow::Result<Vec<Pair>> {
    let mut backend = setup.rank(weights, threads, Box::new(member))?;
    let mut matrices: Vec<CpuMatrix> = Vec::new();
    let mut bytes = 0;
    while bytes < setup.working_set / RANKS {
        let matrix = load(&mut backend, shard, MatrixRole::Projection)?;
        bytes += backend.matrix_bytes(&matrix);
        matrices.push(matrix);
    }
    // Ranks wait for each other, so what counts is the time that passes.
    let clock = Clock::for_threads(RANKS * threads);
    let mut pairs = Vec::new();
    for tokens in TOKENS {
        let mut x = backend.tensor(tokens, shard.cols)?;
        fill(x.values_mut());
        let mut out = backend.tensor(tokens, shard.rows)?;
        let count = if tokens > 32 {
            FEW_LAYERS
        } else {
            matrices.len()
        };
        let (mut products, mut sums) = (Vec::new(), Vec::new());
        for round in 0..=setup.repeat {
            let (mut product, mut sum) = (0.0, 0.0);
            for matrix in matrices.iter().take(count) {
                let start = clock.seconds();
                backend.matmul(&x, matrix, None, &mut out);
                let middle = clock.seconds();
                backend.all_reduce(&mut out)?;
                product += middle - start;
                sum += clock.seconds() - middle;
            }
            // The first round warms up.
            if round > 0 {
                products.push(product / count as f64);
                sums.push(sum / count as f64);
            }
        }
        pairs.push((Times::of(products), Times::of(sums)));
    }
    Ok(pairs)
}

//! Each kernel against the machine's limits.
//!
//! Weights, caches and activations are several times the last-level cache and
//! used in turn, as a model uses them, so that none is found in a cache. The
//! limits are measured before and after, by the same threads.

mod all_reduce;
mod attention;
mod line;
mod products;
mod rows;
mod sampling;
mod setup;
mod shape;

use std::path::PathBuf;

use anyhow::ensure;
use clap::ValueEnum;
use lockstep_backend_cpu::Isa;

use crate::limits::{Drift, Limits, working_set};
use crate::report::Report;
use line::Line;
use setup::{KvFormat, Setup, Weights};
use shape::{Custom, Preset};

/// Each kernel against what the machine can do.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models whose shapes are measured [default: 1b,0.5b].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    shape: Vec<Preset>,
    /// Measure the shape of the model in this folder (its config.json) instead.
    #[arg(long, value_name = "DIR", conflicts_with = "shape")]
    model_path: Option<PathBuf>,
    #[command(flatten)]
    custom: Custom,
    /// What weights are kept in.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bf16,f32,int8"
    )]
    weights: Vec<Weights>,
    /// What the KV cache is kept in.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16")]
    kv_cache_dtype: Vec<KvFormat>,
    /// Tokens per matrix product.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,512"
    )]
    tokens: Vec<usize>,
    /// Compute threads [default: available cores].
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Kernels and limits of this instruction set: scalar, neon, avx2, avx512 or
    /// avx512-bf16 [default: the one that the engine takes here].
    #[arg(long, value_name = "NAME")]
    isa: Option<Isa>,
    /// Measure these alone.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KERNELS")]
    only: Vec<Part>,
    /// Measurements of each figure; the median is reported, with the extremes.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

/// Kernels that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Matrix products of a layer, one by one.
    Matmul,
    /// All matrix products of a layer at 1 to 16 tokens, relative to 1 token.
    Steps,
    /// Attention over a paged cache.
    Attention,
    /// Norms, rotary embedding, activation, table look-up.
    Rows,
    /// Sums over two ranks in this process, after the matrix products they follow.
    AllReduce,
    /// From a row of logits to a token.
    Sampling,
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<Report> {
    measure(args, working_set()?)
}

/// Measures with data that add up to `working_set` bytes.
fn measure(args: &Args, working_set: usize) -> anyhow::Result<Report> {
    let threads = args
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    ensure!(
        args.repeat > 0 && args.tokens.iter().all(|&tokens| tokens > 0),
        "repeat at least once, with at least one token"
    );
    let shapes = shape::chosen(&args.shape, args.model_path.as_deref(), &args.custom)?;
    let setup = Setup::new(threads, args.isa, args.repeat, working_set);
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let before = Limits::measure(threads, args.isa, setup.working_set)?;
    let mut lines: Vec<Line> = Vec::new();
    let mut steps = products::step_table();
    let mut reduced = all_reduce::table();
    for shape in &shapes {
        for &weights in &args.weights {
            if wants(Part::Matmul) || wants(Part::Steps) {
                let mut products = products::Products::load(&setup, shape, weights)?;
                if wants(Part::Matmul) {
                    products.measure(&args.tokens, &mut lines)?;
                }
                if wants(Part::Steps) {
                    products.measure_steps(&mut steps)?;
                }
            }
            if wants(Part::AllReduce) {
                all_reduce::measure(&setup, shape, weights, &mut reduced)?;
            }
        }
        for &format in args
            .kv_cache_dtype
            .iter()
            .filter(|_| wants(Part::Attention))
        {
            attention::measure(&setup, shape, format, &mut lines)?;
        }
        if wants(Part::Rows) {
            rows::measure(&setup, shape, &mut lines)?;
        }
        if wants(Part::Sampling) {
            sampling::measure(&setup, shape, &mut lines)?;
        }
    }
    let after = Limits::measure(threads, args.isa, setup.working_set)?;
    let limits = Drift::new(before, after);
    let mut report = line::report(&lines, &limits);
    report.note("threads", threads as u64);
    report.note("kernels", setup.isa_name());
    report.note("one thread's time is", setup.clock.name());
    report.note("memory gone through MiB", (setup.working_set >> 20) as u64);
    report.add(steps);
    report.add(reduced);
    report.add(limits.table());
    Ok(report)
}

#[cfg(test)]
mod tests;

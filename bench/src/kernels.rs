//! Each kernel against the machine's limits.
//!
//! Weights, caches and activations are several times the last-level cache and used in turn,
//! as a model uses them, so that none is found in a cache. The limits are measured before
//! and after, by the same threads.

mod all_reduce;
mod attention;
mod line;
mod products;
mod recurrent;
mod rows;
mod sampling;
mod setup;
mod shape;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use lockstep_devices::{Device, DeviceError, OnDevice, Registry};
use lockstep_hub::Kind;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{DeviceConfig, DeviceKind};

use crate::report::{Report, Table, progress};
use crate::roofline::{self, Drift, working_set};
pub use attention::Call;
use line::Line;
use setup::{KvFormat, Setup, Weights};
pub use setup::{Times, fill, filled, staged};
use shape::{Custom, Preset};
pub use shape::{Matrix, Shape};

/// Each kernel against what the machine can do.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models whose shapes are measured [default: 1b,0.5b].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    shape: Vec<Preset>,
    /// Measure the shape of this model (its config.json) instead: a folder, or a name of the hub.
    #[arg(long, value_name = "MODEL", conflicts_with = "shape")]
    model_path: Option<PathBuf>,
    #[command(flatten)]
    custom: Custom,
    /// What weights are kept in.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bf16,f32,int8,int4"
    )]
    weights: Vec<Weights>,
    /// What the KV cache is kept in.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16,int8")]
    kv_cache_dtype: Vec<KvFormat>,
    /// Tokens per matrix product.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,512"
    )]
    tokens: Vec<usize>,
    /// Compute threads [default: available cores].
    #[arg(long, value_name = "COUNT", value_parser = crate::positive())]
    threads: Option<usize>,
    /// Kernels and limits of this instruction set: scalar, neon, avx2, avx512,
    /// avx512-bf16, amx-emulated or amx [default: the one that the engine takes here].
    #[arg(long, value_name = "NAME", value_parser = known)]
    isa: Option<&'static str>,
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
    /// The gated delta rule of recurrent layers; for a model with such layers alone.
    Recurrent,
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

/// Returns the name of the kernels `name`, if this machine runs them.
fn known(name: &str) -> Result<&'static str, DeviceError> {
    struct Known<'a>(&'a str);
    impl OnDevice for Known<'_> {
        type Output = Result<&'static str, DeviceError>;
        fn run<B: Device>(self, _drafters: &DrafterRegistry<B>) -> Self::Output {
            B::kernels(Some(self.0))
        }
    }
    Registry::empty().run(DeviceKind::Cpu, Known(name))
}

/// Measures with data that add up to `working_set` bytes.
fn measure(args: &Args, working_set: usize) -> anyhow::Result<Report> {
    let threads = args
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    require!(
        args.repeat > 0 && args.tokens.iter().all(|&tokens| tokens > 0),
        "repeat at least once, with at least one token"
    );
    let mut model = args.model_path.clone();
    lockstep_hub::resolve_name("--model-path", &mut model, Kind::Target)?;
    let shapes = shape::chosen(&args.shape, model.as_deref(), &args.custom)?;
    require!(
        !args.only.contains(&Part::Recurrent) || shapes.iter().any(|shape| shape.delta.is_some()),
        "no shape has layers of the gated delta rule: name a model of some in --model-path, or \
         leave out --only recurrent"
    );
    let setup = Setup::new(threads, args.isa, args.repeat, working_set);
    let cores = DeviceConfig::default();
    progress("measuring the limits of this machine");
    let before = roofline::measure(cores, threads, args.isa, setup.working_set)?;
    let kernels = Kernels {
        args,
        setup: &setup,
        shapes: &shapes,
    };
    let found = Registry::empty().run(cores.kind, kernels)?;
    progress("measuring the limits again");
    let after = roofline::measure(cores, threads, args.isa, setup.working_set)?;
    let limits = Drift::new(before, after).context("the cores have limits")?;
    let mut report = line::report(&found.lines, &limits);
    report.note("threads", threads as u64);
    report.note("kernels", found.kernels);
    report.note("time of one thread's kernels", setup.clock.name());
    report.note("memory gone through MiB", (setup.working_set >> 20) as u64);
    report.add(found.steps);
    report.add(found.sums);
    report.add(limits.table());
    Ok(report)
}

/// All kernels that are asked for, on one device.
struct Kernels<'a> {
    args: &'a Args,
    setup: &'a Setup,
    shapes: &'a [Shape],
}

impl OnDevice for Kernels<'_> {
    type Output = anyhow::Result<Found>;

    fn run<B: Device>(self, _drafters: &DrafterRegistry<B>) -> Self::Output {
        let Self {
            args,
            setup,
            shapes,
        } = self;
        let mut found = Found {
            kernels: B::kernels(setup.kernels)?,
            lines: Vec::new(),
            steps: products::step_table(),
            sums: all_reduce::table(),
        };
        for shape in shapes {
            for &weights in &args.weights {
                found.weights::<B>(args, setup, shape, weights)?;
            }
            found.activations::<B>(args, setup, shape)?;
        }
        Ok(found)
    }
}

/// Results of the measurements.
struct Found {
    /// Name of the kernels that ran.
    kernels: &'static str,
    lines: Vec<Line>,
    steps: Table,
    sums: Table,
}

impl Found {
    /// Kernels that read the weights of a layer.
    fn weights<B: Device>(
        &mut self,
        args: &Args,
        setup: &Setup,
        shape: &Shape,
        weights: Weights,
    ) -> anyhow::Result<()> {
        let name = format!("{}, {} weights", shape.name, weights.name());
        if args.wants(Part::Matmul) || args.wants(Part::Steps) {
            progress(&format!("{name}: products"));
            let mut products = products::Products::<B>::load(setup, shape, weights)?;
            if args.wants(Part::Matmul) {
                products.measure(&args.tokens, &mut self.lines)?;
            }
            if args.wants(Part::Steps) {
                products.measure_steps(&mut self.steps)?;
            }
        }
        if args.wants(Part::AllReduce) {
            progress(&format!("{name}: sums over ranks"));
            all_reduce::measure::<B>(setup, shape, weights, &mut self.sums)?;
        }
        Ok(())
    }

    /// Kernels that read activations and the cache.
    fn activations<B: Device>(
        &mut self,
        args: &Args,
        setup: &Setup,
        shape: &Shape,
    ) -> anyhow::Result<()> {
        if let Some(delta) = shape.delta {
            if args.wants(Part::Recurrent) {
                progress(&format!("{}: the gated delta rule", shape.name));
                recurrent::measure::<B>(setup, shape, delta, &mut self.lines)?;
            }
            // The other kernels are measured with the attention of the same model.
            return Ok(());
        }
        if args.wants(Part::Attention) {
            for &format in &args.kv_cache_dtype {
                progress(&format!(
                    "{}, {} cache: attention",
                    shape.name,
                    format.name()
                ));
                attention::measure::<B>(setup, shape, format, &mut self.lines)?;
            }
        }
        if args.wants(Part::Rows) {
            progress(&format!("{}: kernels over rows", shape.name));
            rows::measure::<B>(setup, shape, &mut self.lines)?;
        }
        if args.wants(Part::Sampling) {
            progress(&format!("{}: sampling", shape.name));
            sampling::measure(setup, shape, &mut self.lines)?;
        }
        Ok(())
    }
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

#[cfg(test)]
mod tests;

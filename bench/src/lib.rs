//! `lockstep bench`: measures the engine, the server and their parts on this machine.
//!
//! Every benchmark prints a table for people and, with `--output`, JSON with
//! the same figures, the command line and the machine; `phases` adds Markdown
//! and pictures.

#![forbid(unsafe_code)]

/// Refuses a request that can't be met, as the command line's fault.
macro_rules! require {
    ($holds:expr, $($why:tt)+) => {
        anyhow::ensure!(
            $holds,
            lockstep_types::ConfigError::Usage(format!($($why)+))
        )
    };
}

mod device;
mod exchanges;
mod kernels;
mod machine;
mod offline;
mod phases;
mod planner;
mod quality;
mod report;
mod roofline;
mod roundtrip;
mod serve;
mod speculate;
mod stats;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use clap::{Args as ClapArgs, Subcommand};
use lockstep_devices::Registry;
use lockstep_hub::Kind;

/// Measure this machine with Lockstep.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Also write the figures as JSON to this file; `phases`: to this folder.
    #[arg(long, global = true, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Prefill and decode tokens/s of a model, without a server: the planner
    /// and all ranks inside this process.
    ///
    /// The context length and the requests that run at once are what the
    /// measurements need, unless they are given.
    Offline(Box<offline::Args>),
    /// Load on a running OpenAI-compatible server, Lockstep or another.
    Serve(Box<serve::Args>),
    /// Each kernel against what the machine can do: memory read and
    /// multiplications, measured in the same run.
    Kernels(Box<kernels::Args>),
    /// What a GPU achieves of what it could: products, attention, choosing tokens and
    /// whole steps by its own clock, beside ceilings measured in the same run.
    ///
    /// With --load-format dummy a folder with a config.json alone is enough.
    Device(Box<device::Args>),
    /// What quantised weights and caches do to a model's predictions:
    /// perplexity and distance from the same checkpoint in f32.
    Quality(Box<quality::Args>),
    /// What speculative decoding brings: accepted drafts and tokens/s by domain
    /// of the prompts, algorithm and depth, beside none in the same run.
    Speculate(Box<speculate::Args>),
    /// Adaptive depth against every fixed depth, while the work changes: phases
    /// of predictable and hard texts at 1 to 32 streams.
    ///
    /// `--output` is a folder here: JSON, Markdown and pictures.
    Phases(Box<phases::Args>),
    /// Time that planning one step takes.
    Planner(planner::Args),
    /// What ranks exchange in a decode step, by kind, and how long each exchange
    /// takes: tensor-parallel beside data-parallel attention.
    Exchanges(exchanges::Args),
    /// Round trip of a step between scheduler and worker processes.
    Roundtrip(roundtrip::Args),
}

/// The parser of a number that is at least 1.
fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Writes the demo model below a folder and gives its path.
pub type DemoModel = fn(&Path) -> io::Result<PathBuf>;

/// The folder of a model. If an option gives a model, this is its folder, loaded first if
/// the option has a name of the hub. Otherwise this is the folder of the demo model, written
/// below `parent`.
fn model_or_demo(
    mut given: Option<PathBuf>,
    demo: DemoModel,
    parent: &Path,
) -> anyhow::Result<PathBuf> {
    lockstep_hub::resolve_name("--model-path", &mut given, Kind::Target)?;
    match given {
        Some(path) => Ok(path),
        None => demo(parent).context("writing the demo model"),
    }
}

/// Runs one benchmark; `demo` is the model where none is named, and `registry` has the
/// algorithms that it can draft with.
///
/// # Errors
/// Fails when the benchmark can't be run as asked; no figures are printed then. An error of the
/// command line or the configuration has a [`ConfigError`](lockstep_types::ConfigError)
/// among its causes.
pub fn run(args: Args, demo: DemoModel, registry: &Registry) -> anyhow::Result<()> {
    let algorithms = registry.algorithms();
    let report = match args.bench {
        Bench::Offline(bench) => offline::run(*bench, demo, &algorithms)?,
        Bench::Serve(bench) => serve::run(*bench)?,
        Bench::Kernels(bench) => kernels::run(&bench)?,
        Bench::Device(bench) => device::run(*bench, demo)?,
        Bench::Quality(bench) => quality::run(&bench, demo)?,
        Bench::Speculate(bench) => speculate::run(*bench, demo, registry)?,
        Bench::Phases(bench) => {
            let outcome = phases::run(*bench, demo, registry)?;
            let printed = outcome.print();
            return args
                .output
                .map_or(Ok(()), |folder| outcome.write(&folder))
                .and(printed);
        }
        Bench::Planner(bench) => planner::run(&bench)?,
        Bench::Exchanges(bench) => exchanges::run(&bench, demo)?,
        Bench::Roundtrip(bench) => match roundtrip::run(&bench)? {
            Some(report) => report,
            None => return Ok(()),
        },
    };
    let printed = report.print();
    if let Some(path) = args.output {
        report.write(&path)?;
    }
    printed
}

//! Measures a device with memory of its own against its ceilings, by its own clock:
//! products, attention, choosing, whole passes, and the host's time between them.
//!
//! Ceilings are measured in the same run. Weights and caches are far larger than any
//! cache of the device and used in turn, and all data are random.

mod alone;
mod bits;
mod experts;
mod kernels;
mod latency;
mod parts;
mod passes;
mod recurrent;
mod sink;
mod sizes;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lockstep_config::args::{GraphArgs, MemoryArgs, ModelArgs, ParallelArgs};
use lockstep_config::{Hardware, ServeArgs};
use lockstep_devices::{Device, OnDevice, Registry};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{Algorithms, DeviceKind, EngineConfig};
use serde_json::json;

use crate::report::{Report, progress, tell};
use crate::{DemoModel, kernels::Shape};
use kernels::Kernels;
use parts::{Bench, Ceilings};
use sink::Sink;
use sizes::Requests;

/// What a GPU achieves of what it could.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure these parts alone.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Also append each figure to this file, as a line of JSON, as soon as it is there.
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// Rows of each product of the model; of the output head up to 512, of recurrent layers
    /// up to 256.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,16,32,64,512,2048,8192"
    )]
    rows: Vec<usize>,
    /// Rows of the kernels that treat each row by itself.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ROWS",
        default_value = "1,64,8192"
    )]
    elementwise: Vec<usize>,
    /// Attention of one new token each: requests and their cached tokens.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "REQUESTSxTOKENS",
        default_value = "1x256,1x1024,1x8192,64x1024,64x4096"
    )]
    attention: Vec<Requests>,
    /// Whole decode steps: requests and their cached tokens.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "REQUESTSxTOKENS",
        default_value = "1x1024,64x1024"
    )]
    decode: Vec<Requests>,
    /// Tokens of a prompt that is computed in one pass.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    prefill: usize,
    /// Rows of logits that tokens are chosen from at once.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "ROWS",
        default_value = "1,64"
    )]
    sampled: Vec<usize>,
    /// Rows and columns of the large product that is the arithmetic's ceiling.
    #[arg(long, value_name = "SIZE", default_value_t = 8192)]
    peak: usize,
    /// MiB that data used in turn add up to; several times the largest cache.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    working_set: usize,
    /// Steps whose time by the host's clock is taken together.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Measurements of each figure; the median is reported, with the extremes.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    graphs: GraphArgs,
}

/// Figures that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Matrix products of a layer, and of the output head.
    Products,
    /// Attention of decode steps and of a prompt, whole and kernel by kernel.
    Attention,
    /// A mixture of experts, whole and kernel by kernel, if the model has one.
    Experts,
    /// A layer of the gated delta rule, whole and kernel by kernel, if the model has one.
    Recurrent,
    /// Tokens from logits.
    Choosing,
    /// Norms, activations, rotations and sums of parts, each by itself.
    Elementwise,
    /// A chain of kernels that do nothing, and reading from the cache.
    Latency,
    /// Bits of wgmma beside those of mma.sync.
    Bits,
    /// Whole decode steps, recorded.
    Steps,
    /// A whole prompt.
    Prompt,
    /// Whole decode steps, launch by launch.
    Launches,
}

impl Args {
    fn measures(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Runs the benchmark.
pub fn run(mut args: Args, demo: DemoModel) -> anyhow::Result<Report> {
    check(&args)?;
    // The folder stays until everything is measured.
    let folder = tempfile::tempdir().context("a folder for the demo model")?;
    if args.model.model_path.is_none() {
        let path: PathBuf = demo(folder.path()).context("writing the demo model")?;
        args.model.model_path = Some(path);
    }
    let (config, kept) = resolve(&args)?;
    require!(
        config.device.kind != DeviceKind::Cpu,
        "there is no GPU to measure, or none that serves this; --device cuda says why, and `lockstep bench kernels` measures the processor"
    );
    require!(
        config.parallel.tp_size == 1,
        "one device is measured: leave --tp-size out"
    );
    require!(
        !(config.graphs.is_empty() && args.only.contains(&Part::Steps)),
        "`--only steps` measures recorded steps: leave --disable-cuda-graph out, or name `launches`"
    );
    require!(
        experts::mixture(&config.model).is_some() || !args.only.contains(&Part::Experts),
        "`--only experts` measures a mixture of experts, and this model has none: name another model or part"
    );
    require!(
        recurrent::delta(&config.model).is_some() || !args.only.contains(&Part::Recurrent),
        "`--only recurrent` measures a layer of the gated delta rule, and this model has none: name another model or part"
    );
    let work = Measure {
        args: &args,
        config: &config,
        kept: kept.as_deref(),
    };
    Registry::empty().run(config.device.kind, work)
}

fn check(args: &Args) -> anyhow::Result<()> {
    let sizes = [
        args.prefill,
        args.peak,
        args.working_set,
        args.steps,
        args.repeat,
    ];
    let lists = [&args.rows, &args.sampled, &args.elementwise];
    require!(
        !sizes.contains(&0) && !lists.iter().any(|list| list.contains(&0)),
        "rows, sizes, steps and repetitions are at least 1"
    );
    require!(
        !args.decode.is_empty() && !args.attention.is_empty() && !args.rows.is_empty(),
        "--rows, --attention and --decode name something to measure"
    );
    Ok(())
}

/// Resolves the configuration of a server with these options, with room for the
/// measurements; and the folder where compiled kernels are kept.
fn resolve(args: &Args) -> anyhow::Result<(EngineConfig, Option<PathBuf>)> {
    let mut engine = ServeArgs::default();
    engine.graphs = args.graphs.clone();
    engine.model = args.model.clone();
    engine.parallel = args.parallel.clone();
    engine.memory = args.memory.clone();
    let longest = args.decode.iter().map(|decode| decode.tokens + 1).max();
    let longest = longest.unwrap_or(1).max(args.prefill);
    let path = args.model.model_path.as_deref();
    let model = path.map(lockstep_model_folder::load).transpose()?;
    let positions = model.map_or(0, |model| model.max_position_embeddings);
    require!(
        longest <= positions,
        "--prefill and --decode need {longest} positions, and the model has {positions}: give smaller ones"
    );
    let running = args.decode.iter().map(|decode| decode.requests).max();
    engine.model.context_length.get_or_insert(longest);
    engine.schedule.max_running_requests = running;
    engine.schedule.chunked_prefill_size = Some(-1);
    let footprint = &lockstep_devices::DeviceFootprint;
    let algorithms = Algorithms::default();
    let resolved = lockstep_config::resolve(&engine, &Hardware::detect(), &algorithms, footprint)?;
    tell(&resolved.notes);
    let (config, node) = resolved.value;
    require!(
        config.server.context_length >= longest,
        "the measurements need a --context-length of {longest}"
    );
    Ok((config, node.weight_cache))
}

/// All measurements, on one device.
struct Measure<'a> {
    args: &'a Args,
    config: &'a EngineConfig,
    /// Folder where compiled kernels are kept.
    kept: Option<&'a Path>,
}

impl OnDevice for Measure<'_> {
    type Output = anyhow::Result<Report>;

    fn run<B: Device>(self, _drafters: &DrafterRegistry<B>) -> Self::Output {
        let Self { args, config, kept } = self;
        let shape = Shape::of(&config.model)?;
        let mut sink = Sink::open(args.lines.as_deref())?;
        progress("measuring the ceilings");
        let working_set = args.working_set << 20;
        let mut bench: Bench<B> = Bench::open(config, &[1], kept, args.repeat, working_set)?;
        let ceilings = Ceilings::measure(&mut bench, args.peak)?;
        for ceiling in ceilings.table().rows() {
            sink.write("ceilings", ceiling)?;
        }
        let mut kernels = Kernels::new(&mut bench, &shape, config, &ceilings, &mut sink);
        measure_kernels(args, &mut kernels)?;
        let figures = kernels.figures;
        let bits = args.measures(Part::Bits).then(|| bits::compare(&mut bench));
        if let Some(bits) = &bits {
            sink.write("bits", bits.last())?;
        }
        let device = bench.backend.describe(bench.format);
        // The memory of this bench is needed for the next one.
        drop(bench);
        let mut report = Report::new("A device against its ceilings", &parts::COLUMNS);
        report.computed_on(&[device]);
        report.note("model", config.model.path.display().to_string());
        report.note("weights", config.model.load_format.name());
        report.note("dtype", config.dtype.name());
        report.note("memory gone through MiB", args.working_set as u64);
        report.note(
            "of copy, of product",
            "shares of the ceilings of this run: bytes copied, read and written, and the large product",
        );
        figures.into_iter().for_each(|cells| report.row(cells));
        report.add(ceilings.table());
        bits.into_iter().for_each(|table| report.add(table));
        for table in passes::measure::<B>(&self, &ceilings, &mut sink)? {
            report.add(table);
        }
        report.note(
            "seconds",
            json!("medians, with the extremes of all repetitions"),
        );
        Ok(report)
    }
}

/// Measures all parts that are kernels.
fn measure_kernels<B: Device>(args: &Args, kernels: &mut Kernels<'_, B>) -> anyhow::Result<()> {
    if args.measures(Part::Products) {
        kernels.begin("products");
        kernels.products(&args.rows)?;
    }
    if let Some(spec) = experts::mixture(&kernels.config.model)
        && args.measures(Part::Experts)
    {
        kernels.begin("experts");
        kernels.experts(spec, &args.rows)?;
    }
    if let Some(shape) = recurrent::delta(&kernels.config.model)
        && args.measures(Part::Recurrent)
    {
        kernels.begin("recurrent");
        kernels.recurrent(shape, &args.rows, args.prefill)?;
    }
    if args.measures(Part::Attention) {
        kernels.begin("attention");
        for requests in &args.attention {
            kernels.attention(*requests)?;
        }
        kernels.prompt(args.prefill)?;
    }
    if args.measures(Part::Choosing) {
        kernels.begin("choosing");
        for rows in &args.sampled {
            kernels.choosing(*rows, false)?;
            kernels.choosing(*rows, true)?;
        }
    }
    if args.measures(Part::Elementwise) {
        kernels.begin("elementwise");
        kernels.elementwise(&args.elementwise)?;
    }
    if args.measures(Part::Latency) {
        kernels.begin("latency");
        kernels.latency()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

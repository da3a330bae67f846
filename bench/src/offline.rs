//! Prefill and decode tokens/s of a model, without a server.
//!
//! Both phases run the real planner and the real workers inside this process. Each time is
//! held against the machine's limits, which are measured before and after.

mod cell;
mod phases;
mod work;

use std::{path::PathBuf, time::Instant};

use anyhow::Context as _;
use lockstep_config::args::{MemoryArgs, ModelArgs, ParallelArgs, ScheduleArgs};
use lockstep_config::{Hardware, ServeArgs};
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_types::{Algorithms, EngineConfig, NamedAdapter, NodeConfig};

use crate::roofline::{self, Ceiling, Drift, Traffic, working_set};
use crate::{
    DemoModel, machine,
    report::{Report, progress, tell},
};
use cell::Cell;
use work::Model;

/// Prefill and decode tokens/s of a model.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prompt lengths for prefill [default: 128,512,2048, where the context is as
    /// long twice over; else half of it].
    #[arg(long, value_delimiter = ',')]
    prefill: Vec<usize>,
    /// Batch sizes for decode [default: 1,4,8,16,32].
    #[arg(long, value_delimiter = ',')]
    batch: Vec<usize>,
    /// Measure one phase alone [default: both].
    #[arg(long, value_name = "PHASE")]
    only: Option<Phase>,
    /// Prompt tokens of each decoding request.
    #[arg(long, default_value_t = 192)]
    context: usize,
    /// Tokens each decoding request generates.
    #[arg(long, default_value_t = 64)]
    output_len: usize,
    /// Repetitions; the median is reported, with the extremes.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Folders of adapters (LoRA), which requests have in turn [default: none has one].
    #[arg(long, value_name = "FOLDER", num_args = 1.., value_delimiter = ',')]
    lora_paths: Vec<PathBuf>,
    /// Largest rank of these adapters [default: 16].
    #[arg(long, value_name = "RANK", requires = "lora_paths")]
    max_lora_rank: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    schedule: ScheduleArgs,
    /// Algorithms that the program can draft with.
    #[arg(skip)]
    algorithms: Algorithms,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Phase {
    /// Whole prompts, one at a time.
    Prefill,
    /// One token a step for each request.
    Decode,
}

/// Runs the benchmark.
pub fn run(mut args: Args, demo: DemoModel, algorithms: &Algorithms) -> anyhow::Result<Report> {
    args.algorithms = algorithms.clone();
    report(args, demo, working_set()?)
}

/// Measures, with limits from going through `bytes` of memory.
fn report(mut args: Args, demo: DemoModel, bytes: usize) -> anyhow::Result<Report> {
    require!(
        args.repeat > 0 && args.output_len > 1,
        "repeat at least once, over 2 tokens or more"
    );
    require!(
        !args.batch.contains(&0) && !args.prefill.contains(&0),
        "--batch and --prefill take sizes of at least 1"
    );
    lockstep_hub::resolve_names(&mut args.model, None, None)?;
    // The folder stays until everything is measured.
    let folder = tempfile::tempdir().context("a folder for the demo model")?;
    let inside = args.model.model_path.is_none();
    if inside {
        let path = demo(folder.path()).context("writing the demo model")?;
        args.model.model_path = Some(path);
    }
    complete(&mut args)?;
    let (config, node) = resolve(&args)?;
    // All ranks compute at once.
    let threads = config.parallel.tp_size * config.parallel.threads_per_rank;
    let limits = || roofline::measure(config.device, threads, config.isa.as_deref(), bytes);
    progress("the machine's limits");
    let before = limits()?;
    machine::forget_peak_memory();
    let start = Instant::now();
    let options = LocalOptions {
        weight_cache: node.weight_cache,
        ..LocalOptions::default()
    };
    progress("loading the model");
    let mut engine = LocalEngine::start(&config, &options)?;
    let loaded = start.elapsed();
    let work = Model::new(&config, engine.weight_bytes());
    let cells = phases::measure(&mut engine, &args, &work)?;
    let peak = machine::peak_memory().map(|bytes| bytes as f64 / f64::from(1 << 30));
    let notes = about(&config, &engine, inside);
    let ranks = engine.descriptions().to_vec();
    drop(engine);
    progress("the machine's limits again");
    let limits = Drift::new(before, limits()?);

    let mut report = Report::new("Offline throughput", &cell::columns());
    for (name, value) in notes {
        report.note(name, value);
    }
    report.computed_on(&ranks);
    report.note("load seconds", loaded.as_secs_f64());
    report.note(
        "weights GB read per decode step",
        work.weights_read(1) * 1e-9,
    );
    let traffic = match work.exceeds(bytes) {
        true => Traffic::Read,
        false => Traffic::Cached,
    };
    if traffic == Traffic::Cached && limits.is_some() {
        report.note("memory bandwidth", "no limit here: the weights fit a cache");
    }
    let ceiling = limits.as_ref().map_or(Ceiling::NONE, |limits| {
        limits.ceiling(traffic, work.arithmetics())
    });
    add(&mut report, &cells, ceiling);
    report.note("peak memory GiB", peak);
    match limits {
        Some(limits) => report.add(limits.table()),
        None => report.note("limits", "not measured on this device"),
    }
    Ok(report)
}

/// Adds a row for each cell, beside its limit.
fn add(report: &mut Report, cells: &[Cell], ceiling: Ceiling) {
    let mut beyond = false;
    for cell in cells {
        let reached = ceiling.reached(cell.work, cell.median());
        beyond |= reached.is_beyond();
        report.row(cell.row(reached));
    }
    if beyond {
        report.note(
            "above 1",
            "something else held the machine up while its limits were measured: measure again",
        );
    }
}

/// Chooses the measurements where the arguments name none.
fn complete(args: &mut Args) -> anyhow::Result<()> {
    let (prefill, decode) = (Some(Phase::Prefill), Some(Phase::Decode));
    require!(
        (args.only != decode || args.prefill.is_empty())
            && (args.only != prefill || args.batch.is_empty()),
        "--only leaves out what --prefill or --batch asks for; give one of them"
    );
    if args.only != prefill && args.batch.is_empty() {
        args.batch = vec![1, 4, 8, 16, 32];
    }
    if args.only != decode && args.prefill.is_empty() {
        args.prefill = vec![128, 512, 2048];
        let half = (longest_context(&args.model) / 2).max(1);
        args.prefill
            .iter_mut()
            .for_each(|len| *len = half.min(*len));
        args.prefill.dedup();
    }
    Ok(())
}

/// The longest context that may be configured: the context that was asked for, or the one
/// that the model was made for. A model that can't be read is refused with the rest of the
/// configuration.
fn longest_context(model: &ModelArgs) -> usize {
    let path = model.model_path.as_deref();
    let made_for = || lockstep_model_folder::load(path?).ok();
    let made_for = || made_for().map_or(usize::MAX, |model| model.max_position_embeddings);
    model.context_length.unwrap_or_else(made_for)
}

/// Notes about the configuration that is measured.
fn about(
    config: &EngineConfig,
    engine: &LocalEngine,
    inside: bool,
) -> Vec<(&'static str, serde_json::Value)> {
    let (model, parallel) = (&config.model, &config.parallel);
    let name = match inside {
        true => format!("{} (inside the program)", config.server.served_model_name),
        false => model.path.display().to_string(),
    };
    let origins = engine.weight_origins();
    let restored = origins.iter().all(|origin| origin.restored);
    let warnings = origins.iter().flat_map(|origin| &origin.warnings);
    let mut notes = vec![
        ("model", name.into()),
        ("parameters", lockstep_model::parameters(model).into()),
        ("dtype", config.dtype.name().into()),
        ("quantization", config.model.quantization.name().into()),
        ("KV cache dtype", config.kv.dtype.name().into()),
        ("tensor-parallel ranks", parallel.tp_size.into()),
        ("threads per rank", parallel.threads_per_rank.into()),
        ("weights from --weight-cache", restored.into()),
    ];
    if parallel.dp_size > 1 {
        notes.push(("DP ranks", parallel.dp_size.into()));
    }
    if parallel.ep_size > 1 {
        notes.push(("groups of experts", parallel.ep_size.into()));
    }
    if config.adapters.places > 0 {
        notes.push(("adapters", config.adapters.places.into()));
        notes.push(("largest rank of adapters", config.adapters.rank.into()));
    }
    notes.extend(warnings.map(|warning| ("weight cache", warning.clone().into())));
    notes
}

/// Asks for room for the adapters.
fn name_adapters(args: &Args, engine: &mut ServeArgs) -> anyhow::Result<()> {
    let named = |(number, path): (usize, &PathBuf)| NamedAdapter {
        name: number.to_string(),
        path: path.clone(),
    };
    let folders = &args.lora_paths;
    engine.lora.lora_paths = folders.iter().enumerate().map(named).collect();
    engine.lora.max_lora_rank = args.max_lora_rank;
    if !folders.is_empty() {
        let places = u16::try_from(folders.len()).context("--lora-paths names too many")?;
        engine.lora.max_loras_per_batch = Some(places);
    }
    Ok(())
}

fn resolve(args: &Args) -> anyhow::Result<(EngineConfig, NodeConfig)> {
    let longest = args.prefill.iter().copied().max().unwrap_or(0) + 1;
    let longest = longest.max(args.context + args.output_len);
    let batch = args.batch.iter().copied().max().unwrap_or(1).max(1);
    let mut engine = ServeArgs::of_engine(
        args.model.clone(),
        args.parallel.clone(),
        args.memory.clone(),
        args.schedule.clone(),
    );
    name_adapters(args, &mut engine)?;
    let room = longest_context(&args.model).min(longest + 16);
    engine.model.context_length.get_or_insert(room);
    // DP ranks share out this number, rounded down.
    let dp_size = engine.parallel.dp_size.unwrap_or(1);
    let running = batch.next_multiple_of(dp_size);
    engine.schedule.max_running_requests.get_or_insert(running);
    let resolved = lockstep_config::resolve(
        &engine,
        &Hardware::detect(),
        &args.algorithms,
        &lockstep_devices::DeviceFootprint,
    )?;
    tell(&resolved.notes);
    let (config, node) = resolved.value;
    require!(
        config.server.context_length >= longest,
        "the measurements need a --context-length of {longest}"
    );
    let each = batch.div_ceil(dp_size);
    require!(
        config.kv_tokens() >= each * (args.context + args.output_len + config.kv.page_size),
        "the KV cache holds {} tokens, too few for {each} requests: raise --max-total-tokens",
        config.kv_tokens()
    );
    Ok((config, node))
}

#[cfg(test)]
mod tests;

//! Speculation compared with the same engine without it: by domain of the prompts, by
//! algorithm and by depth.
//!
//! All engines are loaded at once and answer the same prompts in turn, greedily, so that a
//! machine that drifts within minutes drifts for all engines. Their texts are compared: a
//! difference is reported, because there should be none.

pub(crate) mod candidates;
mod constraint;
pub(crate) mod engines;
pub(crate) mod prompts;
mod run_engines;
mod tables;
pub(crate) mod tally;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lockstep_config::args::{MemoryArgs, ModelArgs, ParallelArgs, ScheduleArgs, SpeculationArgs};
use lockstep_devices::Registry;

use crate::DemoModel;
use crate::report::Report;
use crate::roofline::{self, Drift, working_set};
use candidates::Candidate;
use engines::Engines;
use prompts::{Prompts, Wanted};
use tally::Tally;

/// What speculation brings, by domain and depth.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to draft with: names, each with its folder where that is not
    /// MODEL-eagle3, MODEL-eagle, MODEL-draft or MODEL-dflash
    /// (`standalone=models/small`)
    /// [default: NEXTN, if the model has a draft layer of its own, and those whose
    /// folder is there].
    ///
    /// NGRAM remembers what it served, and finds the texts of earlier runs.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME[=DIR]",
        conflicts_with = "speculative_algorithm"
    )]
    algorithms: Vec<Candidate>,
    /// Draft steps to try; the deepest decides over buffers.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,3,5,7",
        conflicts_with = "speculative_num_steps"
    )]
    steps: Vec<u32>,
    /// Requests that run at once.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// JSON of prompts: `{"prompts": [{"domain": …, "messages": […]}]}`, with
    /// `prompt` (text) or `prompt_ids` in place of `messages` where there is no
    /// chat [default: 20 domains of the demo model].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// File of a JSON schema: each domain is also asked for answers in it, as a domain of its
    /// own named `DOMAIN as JSON`.
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Only these domains.
    #[arg(long, value_delimiter = ',')]
    domains: Vec<String>,
    /// Prompts of each domain at the most.
    #[arg(long, default_value_t = 4)]
    per_domain: usize,
    /// Tokens of an answer at the most.
    #[arg(long, default_value_t = 64)]
    max_tokens: u32,
    /// Repetitions; ratios are taken within each, and their median is reported.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    schedule: ScheduleArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
}

/// Runs the benchmark.
pub fn run(args: Args, demo: DemoModel, registry: &Registry) -> anyhow::Result<Report> {
    report(args, demo, registry, working_set()?)
}

/// Measures, with limits from going through `bytes` of memory.
fn report(
    mut args: Args,
    demo: DemoModel,
    registry: &Registry,
    bytes: usize,
) -> anyhow::Result<Report> {
    check(&args)?;
    lockstep_hub::resolve_names(&mut args.model, Some(&mut args.speculation), None)?;
    // The folder stays until everything is measured.
    let folder = tempfile::tempdir().context("a folder for the demo model")?;
    let given = args.model.model_path.clone();
    let model = match &given {
        Some(path) => path.clone(),
        None => demo(folder.path()).context("writing the demo model")?,
    };
    // A folder without a model is reported first, before files are looked for in and beside
    // it.
    lockstep_model_folder::load(&model)?;
    args.model.model_path = Some(model.clone());
    let named = candidates::named(&args.speculation);
    let candidates = candidates::choose(&args.algorithms, named, &model)?;
    let prompts = load_prompts(&args, &model)?;
    let plain = engines::plain(&args, &prompts)?;
    let threads = plain.parallel.tp_size * plain.parallel.threads_per_rank;
    let limits = || roofline::measure(plain.device, threads, plain.isa.as_deref(), bytes);
    let before = limits()?;
    let mut engines = Engines::start(&args, &plain, &candidates, &prompts, registry)?;
    let mut tally = Tally::default();
    run_engines::all(&args, &prompts, &mut engines, &mut tally)?;
    let (about, ranks) = (engines.about(&plain), engines.descriptions());
    drop(engines);
    let limits = Drift::new(before, limits()?);

    let mut report = tables::report(&tally);
    let name = |path: PathBuf| path.display().to_string();
    let demo = "the demo model inside the program".to_owned();
    report.note("model", given.map_or(demo, name));
    for (name, value) in about {
        report.note(name, value);
    }
    report.computed_on(&ranks);
    report.note("prompts", prompts.source());
    asked(&mut report, &args);
    report.note(
        "tokens/round",
        "tokens after an answer's first, for each verification",
    );
    report.note(
        "accepted by position",
        "part of the drafts proposed there, those behind an answer's end included",
    );
    report.note(
        "NGRAM",
        "remembers what earlier runs served, these prompts' answers too: no figure of a first run",
    );
    report.note(
        "answers that differ from those without speculation",
        tally.different(),
    );
    match limits {
        Some(limits) => report.add(limits.table()),
        None => report.note("limits", "not measured on this device"),
    }
    Ok(report)
}

/// Loads the prompts that are asked for, with their constrained twins.
fn load_prompts(args: &Args, model: &Path) -> anyhow::Result<Prompts> {
    let wanted = Wanted {
        file: args.prompts.as_deref(),
        domains: &args.domains,
        per_domain: args.per_domain,
    };
    let mut prompts = Prompts::load(wanted, model)?;
    if let Some(file) = &args.json_schema {
        prompts.constrain(&constraint::read(file, model)?);
    }
    Ok(prompts)
}

/// Notes the amount of work that was asked for.
fn asked(report: &mut Report, args: &Args) {
    report.note("prompts of a domain", args.per_domain);
    report.note("tokens of an answer, at most", args.max_tokens);
    report.note("repetitions", args.repeat);
}

fn check(args: &Args) -> anyhow::Result<()> {
    require!(
        args.repeat > 0 && args.per_domain > 0 && args.max_tokens > 1,
        "--repeat and --per-domain are at least 1, --max-tokens at least 2"
    );
    require!(
        !args.batch.contains(&0) && !args.steps.contains(&0),
        "--batch and --steps take numbers of at least 1; without speculation is measured anyway"
    );
    require!(
        !args.batch.is_empty() && !args.steps.is_empty(),
        "--batch and --steps need a number each"
    );
    Ok(())
}

#[cfg(test)]
mod tests;

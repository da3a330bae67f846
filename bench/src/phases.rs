//! Adaptive depth against every fixed one, while the work changes.
//!
//! Every arm answers a list of phases: without speculation, at every fixed depth, and by
//! every policy. All arms answer the same requests greedily, so that work is equal, and find
//! the prompts in the prefix cache. Arms take turns at slices of the list, forwards and
//! backwards, and ratios are taken within slices.

mod arms;
mod bootstrap;
mod cost;
mod list;
mod replay;
mod run;
mod run_arms;
mod setup;
mod steps;
mod summary;
mod svg;
mod tables;
mod texts;
mod work;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lockstep_adaptive::Seen;
use lockstep_config::args::{MemoryArgs, ModelArgs, ParallelArgs, ScheduleArgs, SpeculationArgs};
use lockstep_devices::Registry;
use lockstep_hub::Kind;

use crate::DemoModel;
use crate::report::{Report, progress};
use crate::speculate::candidates::Candidate;
use list::{List, Named};
use setup::Setup;
use summary::Measured;
use tables::Figures;
use work::Work;

/// Adaptive depth against fixed ones, while the work changes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to draft with: a name, with its folder where that is not
    /// MODEL-eagle3, MODEL-eagle, MODEL-draft or MODEL-dflash
    /// (`standalone=models/small`)
    /// [default: NEXTN, if the model has a draft layer of its own, else the first
    /// whose folder is there].
    #[arg(
        long,
        value_name = "NAME[=DIR]",
        conflicts_with = "speculative_algorithm"
    )]
    algorithm: Vec<Candidate>,
    /// Lists of phases: `nine` (predictable, hard, code and mixed texts at 1 to
    /// 32 streams and a tail), `two-regimes` (predictable 1 and mixed 32, twice),
    /// `repeats` (texts that repeat and texts that do not, twice, for NGRAM),
    /// `dp-ranks` (all DP ranks busy, one busier than the others, one alone), `hard`
    /// (hard texts alone, 1 to 24 streams: what adapting costs where it brings nothing)
    /// [default: nine,two-regimes; dp-ranks with --dp-size; none with
    /// --constant].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    lists: Vec<Named>,
    /// Lists of one phase of mixed texts, at so many streams.
    #[arg(long, visible_alias = "streams", value_delimiter = ',')]
    constant: Vec<u32>,
    /// Fixed depths; 0 never drafts, on an engine whose depth could adapt.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1,2,3,5,7",
        conflicts_with = "speculative_num_steps"
    )]
    steps: Vec<u32>,
    /// Policies; an empty value is none [default: all but `static`].
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    policies: Option<Vec<String>>,
    /// Also run a second engine without speculation, at the end: what two of the same
    /// differ by is chance.
    #[arg(long)]
    control: bool,
    /// Tokens that each stream puts out in a phase at 8 streams or more; twice
    /// as many at less, four times at one. The tail has half of them. At 40 a
    /// repetition of both lists takes less than 20 minutes with a model of 1
    /// billion parameters on two cores.
    #[arg(long, default_value_t = 40)]
    dwell: u32,
    /// Repetitions. Intervals come from slices of the phases, in which arms take
    /// turns, so that one repetition has some.
    #[arg(long, default_value_t = 2)]
    repeat: usize,
    /// JSON of prompts, as `lockstep bench speculate` takes it: `tables`,
    /// `weather` and `units` are predictable, `poem`, `reversing`, `sorting` and
    /// `copy` hard, `code` code [default: 20 domains of the demo model].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Only these domains.
    #[arg(long, value_delimiter = ',')]
    domains: Vec<String>,
    /// Prompts of each domain at the most.
    #[arg(long, default_value_t = 4)]
    per_domain: usize,
    /// Tokens of an answer at the most.
    #[arg(long, default_value_t = 128)]
    max_tokens: u32,
    /// A smaller model that writes the same, to log accepted drafts with
    /// [default: the model].
    #[arg(long, value_name = "MODEL")]
    log_model_path: Option<PathBuf>,
    /// What drafts the same for it [default: as for the model].
    #[arg(long, value_name = "MODEL", requires = "log_model_path")]
    log_draft_model_path: Option<PathBuf>,
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

/// Figures, and a picture for each list.
pub struct Outcome {
    report: Report,
    /// File names and contents.
    pictures: Vec<(String, String)>,
    /// Every step of every run.
    steps: String,
}

/// Runs the benchmark.
///
/// # Errors
/// Fails when it can't be run as asked.
pub fn run(mut args: Args, demo: DemoModel, registry: &Registry) -> anyhow::Result<Outcome> {
    let lists = lists(&args)?;
    lockstep_hub::resolve_names(&mut args.model, Some(&mut args.speculation), None)?;
    for (option, path, kind) in [
        ("--log-model-path", &mut args.log_model_path, Kind::Target),
        (
            "--log-draft-model-path",
            &mut args.log_draft_model_path,
            Kind::Draft,
        ),
    ] {
        lockstep_hub::resolve_name(option, path, kind)?;
    }
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
    let streams = lists.iter().map(List::streams).max().unwrap_or(1);
    let mut setup = Setup::new(&args, &model, streams, registry)?;
    let measured = measure(&args, lists, &mut setup)?;
    let replayed = |measured: Measured| {
        let log = setup.log.as_ref().filter(|_| measured.list.is_greedy());
        let decider = |name: &str, profile: &[Seen]| setup.engines.decider(name, profile);
        let replayed = log.map(|log| measured.replay(log, &decider));
        (measured, replayed)
    };
    let figures: Vec<Figures> = measured.into_iter().map(replayed).collect();
    let mut report = tables::report(&figures);
    let name = |path: &PathBuf| path.display().to_string();
    let demo = "the demo model inside the program".to_owned();
    report.note("model", given.as_ref().map_or(demo, name));
    report.computed_on(setup.engines.descriptions());
    about(&mut report, &args, &setup, &figures);
    let pictures = figures.iter().map(|(measured, _)| {
        let name = format!("{}.svg", measured.list.name);
        (name, svg::draw(measured, 0))
    });
    Ok(Outcome {
        pictures: pictures.collect(),
        steps: steps::csv(figures.iter().map(|(measured, _)| measured)),
        report,
    })
}

/// The lists that the command line asks for.
fn lists(args: &Args) -> anyhow::Result<Vec<List>> {
    require!(
        args.dwell > 0 && args.repeat > 0 && args.per_domain > 0 && args.max_tokens > 1,
        "--dwell, --repeat and --per-domain are at least 1, --max-tokens at least 2"
    );
    require!(!args.steps.is_empty(), "--steps needs a depth");
    require!(
        !args.constant.contains(&0),
        "--constant takes numbers of at least 1"
    );
    let mut named = args.lists.clone();
    if named.is_empty() && args.constant.is_empty() {
        let several = args.parallel.dp_size.is_some_and(|dp_size| dp_size > 1);
        named = match several {
            true => vec![Named::DpRanks],
            false => vec![Named::Nine, Named::TwoRegimes],
        };
    }
    let named = named.into_iter().map(|named| named.list(args.dwell));
    let constant = args.constant.iter();
    let constant = constant.map(|streams| List::constant(*streams, args.dwell));
    Ok(named.chain(constant).collect())
}

/// Lets every arm answer every list, as often as asked.
fn measure(args: &Args, lists: Vec<List>, setup: &mut Setup) -> anyhow::Result<Vec<Measured>> {
    let arms = setup.engines.arms();
    let measured = lists.into_iter().map(|list| Measured {
        work: Work::new(&list, &setup.texts, setup.config.parallel.dp_size),
        list,
        arms: arms.clone(),
        runs: Vec::new(),
        lag: 1 + usize::from(setup.config.schedule.overlap),
    });
    let mut measured: Vec<Measured> = measured.collect();
    for repetition in 0..args.repeat {
        for measured in &mut measured {
            let runs = run_arms::race(measured, setup, repetition)?;
            for (arm, run) in arms.iter().zip(&runs) {
                progress(&format!("  {arm}: {:.1} s", run.seconds()));
            }
            measured.runs.push(runs);
        }
    }
    Ok(measured)
}

/// Notes the configuration, and the meaning of the columns.
fn about(report: &mut Report, args: &Args, setup: &Setup, figures: &[Figures]) {
    let (config, log) = (&setup.config, setup.log.as_ref());
    let speculation = &config.speculation;
    let depth = u32::try_from(speculation.num_steps).unwrap_or(u32::MAX);
    report.note("algorithm", speculation.algorithm.clone());
    report.note("parameters", lockstep_model::parameters(&config.model));
    let (weights, of_drafting) = setup.engines.weight_bytes();
    report.note("weights GB", weights as f64 * 1e-9);
    report.note("weights GB of drafting", of_drafting as f64 * 1e-9);
    report.note("dtype", config.dtype.name());
    report.note("tensor-parallel ranks", config.parallel.tp_size);
    report.note("DP ranks", config.parallel.dp_size);
    report.note("threads per rank", config.parallel.threads_per_rank);
    report.note("page size", config.kv.page_size);
    report.note("overlap", config.schedule.overlap);
    report.note("prompts", setup.source.clone());
    report.note("dwell", args.dwell);
    report.note("repetitions", args.repeat);
    report.note("best fixed", "none or a fixed depth, whichever is fastest");
    report.note(
        "low, high",
        "of the ratio to best fixed: 95 %, paired bootstrap over slices of the phases",
    );
    report.note(
        "oracle",
        "replay that knows how often drafts of each text are accepted, or a fixed depth",
    );
    report.note(
        "clairvoyant",
        "replay that knows beforehand which drafts will be accepted: no policy can",
    );
    let runs = figures.iter().flat_map(|(measured, _)| &measured.runs);
    let different: u64 = runs.flatten().map(|run| run.different).sum();
    report.note(
        "answers that differ from those without speculation",
        different,
    );
    report.note(
        "positions where the log's model goes on otherwise",
        log.map(|log| log.different),
    );
    for table in tables::texts(&setup.texts, log, depth) {
        report.add(table);
    }
}

impl Outcome {
    /// Prints the report for people.
    ///
    /// # Errors
    /// The errors of [`Report::print`].
    pub fn print(&self) -> anyhow::Result<()> {
        self.report.print()
    }

    /// Writes `phases.json`, `phases.md`, `steps.csv` and a picture for each list to a
    /// folder.
    ///
    /// # Errors
    /// Fails when a file can't be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        self.report.write(&folder.join("phases.json"))?;
        let mut text = self.report.to_markdown();
        for (name, picture) in &self.pictures {
            text += &format!("\n![Depth and tokens/s over time]({name})\n");
            let path = folder.join(name);
            std::fs::write(&path, picture).with_context(|| path.display().to_string())?;
        }
        for (name, text) in [("phases.md", &text), ("steps.csv", &self.steps)] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Configurations of the engines, and the texts that they answer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use lockstep_config::ServeArgs;
use lockstep_devices::Registry;
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_types::{Algorithms, EngineConfig};

use super::Args;
use super::arms::Engines;
use super::texts::{self, Log};
use super::work::Text;
use crate::report::progress;
use crate::speculate::candidates::{self, Candidate};
use crate::speculate::engines::{self, Drafting, Room};
use crate::speculate::prompts::{Prompts, Wanted};

/// Data that all runs need.
pub struct Setup {
    /// Every arm's engine, with the prompts in its prefix cache.
    pub engines: Engines,
    /// The texts, in the prompts' order.
    pub texts: Vec<Text>,
    /// Accepted drafts; `None` if they can't be known beforehand.
    pub log: Option<Log>,
    /// Configuration of the engines that draft.
    pub config: EngineConfig,
    /// Source of the prompts, for people.
    pub source: String,
}

impl Setup {
    /// Loads everything; `streams` is the most that any list runs at once.
    ///
    /// # Errors
    /// Options that contradict each other, folders that do not fit, memory.
    pub fn new(
        args: &Args,
        model: &Path,
        streams: u32,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let wanted = Wanted {
            file: args.prompts.as_deref(),
            domains: &args.domains,
            per_domain: args.per_domain,
        };
        let prompts = Prompts::load(wanted, model)?;
        let room = room(args, &prompts, streams);
        let named = candidates::named(&args.speculation);
        let chosen = candidates::choose(&args.algorithm, named, model)?;
        let candidate = chosen.into_iter().next().context("nothing to draft with")?;
        let algorithms = registry.algorithms();
        let drafting = config(args, model, Some(&candidate), room, &algorithms)?;
        let plain = config(args, model, None, room, &Algorithms::default())?;

        progress("loading the model without speculation");
        let mut engine = LocalEngine::start(&plain, &LocalOptions::default())?;
        progress("answering all prompts without speculation");
        let page = plain.kv.page_size;
        let texts = texts::answers(&mut engine, &prompts, args.max_tokens, page)?;
        ensure!(!texts.is_empty(), "no answer is long enough to be measured");
        let log = log(args, model, &candidate, room, &texts, registry)?;
        let mut engines = Engines::start(args, engine, [&plain, &drafting], registry)?;
        engines.warm_up(&texts, drafting.parallel.dp_size)?;
        Ok(Self {
            engines,
            texts,
            log,
            config: drafting,
            source: prompts.source(),
        })
    }
}

/// Room for the largest batch, with all prompts and answers in the prefix cache.
fn room(args: &Args, prompts: &Prompts, streams: u32) -> Room {
    let most = args.max_tokens as usize;
    let all = prompts.domains().iter();
    let all = all.flat_map(|domain| &domain.prompts);
    Room {
        // All requests may be on one DP rank, which runs its share of them alone.
        requests: streams as usize * args.parallel.dp_size.unwrap_or(1),
        longest: prompts.longest() + most,
        cached: all.clone().map(|prompt| prompt.len() + most).sum(),
        prefixes: all.count(),
    }
}

/// Accepted drafts, logged by the model itself or by a smaller one that accepts the same.
/// They are known beforehand only for chains whose drafts follow from the text alone; a
/// chain that is cut off is the shorter chain. With several DP ranks the log is of no use,
/// as a step's time depends on the places of its rows.
fn log(
    args: &Args,
    model: &Path,
    candidate: &Candidate,
    room: Room,
    texts: &[Text],
    registry: &Registry,
) -> anyhow::Result<Option<Log>> {
    let model: PathBuf = args.log_model_path.clone().unwrap_or_else(|| model.into());
    let candidate = Candidate {
        folder: args
            .log_draft_model_path
            .clone()
            .or_else(|| candidate.folder.clone()),
        ..candidate.clone()
    };
    let algorithms = registry.algorithms();
    let mut config = config(args, &model, Some(&candidate), room, &algorithms)?;
    // The depth is always the greatest.
    config.speculation.adaptive = None;
    let speculation = &config.speculation;
    let several = config.parallel.dp_size > 1;
    if several || speculation.topk > 1 || speculation.drafts_from_texts {
        return Ok(None);
    }
    progress("logging accepted drafts from every position");
    let options = LocalOptions {
        registry: registry.clone(),
        ..LocalOptions::default()
    };
    let mut engine = LocalEngine::start(&config, &options)?;
    let depth = u32::try_from(speculation.num_steps).unwrap_or(u32::MAX);
    texts::log(&mut engine, texts, depth, room.requests).map(Some)
}

fn config(
    args: &Args,
    model: &Path,
    candidate: Option<&Candidate>,
    room: Room,
    algorithms: &Algorithms,
) -> anyhow::Result<EngineConfig> {
    let mut serve = ServeArgs::of_engine(
        args.model.clone(),
        args.parallel.clone(),
        args.memory.clone(),
        args.schedule.clone(),
    );
    serve.model.model_path = Some(model.to_owned());
    let drafting = Drafting {
        candidate,
        steps: args.steps.iter().copied().max().unwrap_or(1).max(1) as usize,
        options: &args.speculation,
    };
    engines::resolve(serve, drafting, room, algorithms)
}

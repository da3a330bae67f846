//! Configurations of the engines, and the texts that they answer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use lockstep_config::args::SpeculationArgs;
use lockstep_config::{Hardware, ServeArgs};
use lockstep_devices::Registry;
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_types::{Algorithms, EngineConfig};

use super::Args;
use super::arms::Engines;
use super::texts::{self, Log};
use super::work::Text;
use crate::report::progress;
use crate::speculate::candidates::{self, Candidate};
use crate::speculate::prompts::{Prompts, Wanted};

/// All that the runs need.
pub struct Setup {
    /// Every arm's engine, its prompts in the prefix cache.
    pub engines: Engines,
    /// In the prompts' order.
    pub texts: Vec<Text>,
    /// `None` where accepted drafts can't be known beforehand.
    pub log: Option<Log>,
    /// Of the engines that draft.
    pub config: EngineConfig,
    /// Where the prompts are from.
    pub source: String,
}

/// Sizes that engines share.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    streams: usize,
    longest: usize,
    /// Of all prompts and answers.
    tokens: usize,
}

impl Setup {
    /// Loads everything; `streams` are the most that any list runs at once.
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
        let sizes = Sizes::new(args, &prompts, streams);
        let named = candidates::named(&args.speculation);
        let chosen = candidates::choose(&args.algorithm, named, model)?;
        let candidate = chosen.into_iter().next().context("nothing to draft with")?;
        let algorithms = registry.algorithms();
        let drafting = config(args, model, Some(&candidate), sizes, &algorithms)?;
        let plain = config(args, model, None, sizes, &Algorithms::default())?;

        progress("loading the model without speculation");
        let mut engine = LocalEngine::start(&plain, &LocalOptions::default())?;
        progress("answering all prompts without speculation");
        let page = plain.kv.page_size;
        let texts = texts::answers(&mut engine, &prompts, args.max_tokens, page)?;
        ensure!(!texts.is_empty(), "no answer is long enough to be measured");
        let log = log(args, model, &candidate, sizes, &texts, registry)?;
        let mut engines = Engines::start(args, engine, &drafting, registry)?;
        engines.warm_up(&texts)?;
        Ok(Self {
            engines,
            texts,
            log,
            config: drafting,
            source: prompts.source(),
        })
    }
}

impl Sizes {
    fn new(args: &Args, prompts: &Prompts, streams: u32) -> Self {
        let most = args.max_tokens as usize;
        let all = prompts.domains().iter();
        let all = all.flat_map(|domain| &domain.prompts);
        Self {
            streams: streams as usize,
            longest: prompts.longest() + most,
            tokens: all.map(|prompt| prompt.len() + most).sum(),
        }
    }
}

/// Accepted drafts, by the model itself or by a smaller one that accepts the
/// same; only chains whose drafts follow from the text alone are known
/// beforehand, and a chain that is cut off is the shorter chain.
fn log(
    args: &Args,
    model: &Path,
    candidate: &Candidate,
    sizes: Sizes,
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
    let mut config = config(args, &model, Some(&candidate), sizes, &algorithms)?;
    // Always as deep as can be.
    config.speculation.adaptive = None;
    let speculation = &config.speculation;
    if speculation.topk > 1 || speculation.drafts_from_texts {
        return Ok(None);
    }
    progress("logging accepted drafts from every position");
    let options = LocalOptions {
        registry: registry.clone(),
        ..LocalOptions::default()
    };
    let mut engine = LocalEngine::start(&config, &options)?;
    let depth = u32::try_from(speculation.num_steps).unwrap_or(u32::MAX);
    texts::log(&mut engine, texts, depth, sizes.streams).map(Some)
}

/// Room for the largest batch and for all prompts in the prefix cache, unless
/// sizes are given: several engines share the memory.
fn config(
    args: &Args,
    model: &Path,
    candidate: Option<&Candidate>,
    sizes: Sizes,
    algorithms: &Algorithms,
) -> anyhow::Result<EngineConfig> {
    let mut serve = ServeArgs::of_engine(
        args.model.clone(),
        args.parallel.clone(),
        args.memory.clone(),
        args.schedule.clone(),
    );
    serve.model.model_path = Some(model.to_owned());
    let steps = args.steps.iter().copied().max().unwrap_or(1).max(1) as usize;
    if let Some(candidate) = candidate {
        serve.speculation = SpeculationArgs {
            speculative_algorithm: Some(candidate.name.clone()),
            speculative_draft_model_path: candidate.folder.clone(),
            speculative_num_steps: Some(steps),
            ..args.speculation.clone()
        };
    }
    let topk = args.speculation.speculative_eagle_topk.unwrap_or(1);
    let verified = args.speculation.speculative_num_draft_tokens.unwrap_or(0);
    // Two steps may be under way, each with its drafts.
    let slack = 2 * verified.max(steps * topk + 1) + 16;
    let page = serve.memory.page_size.unwrap_or(16);
    let longest = sizes.longest + slack;
    serve.model.context_length.get_or_insert(longest);
    let streams = sizes.streams;
    serve.schedule.max_running_requests.get_or_insert(streams);
    let tokens = streams * (longest + page) + sizes.tokens + page;
    serve.memory.max_total_tokens.get_or_insert(tokens);
    let resolved = lockstep_config::resolve(
        &serve,
        &Hardware::detect(),
        algorithms,
        &lockstep_devices::DeviceFootprint,
    )?;
    Ok(resolved.value.0)
}

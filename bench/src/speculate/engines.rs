//! The engines that race: one without speculation, one for each algorithm.

use anyhow::Context as _;
use lockstep_config::args::SpeculationArgs;
use lockstep_config::{Hardware, ServeArgs};
use lockstep_devices::Registry;
use lockstep_local_engine::{LocalEngine, LocalOptions};
use lockstep_model_folder::Described;
use lockstep_types::{Algorithms, EngineConfig};
use serde_json::{Value, json};

use super::{Args, candidates::Candidate, prompts::Prompts};
use crate::report::{progress, tell};

/// All engines, loaded.
pub struct Engines {
    plain: LocalEngine,
    drafting: Vec<(String, LocalEngine)>,
    verification: String,
}

impl Engines {
    /// Loads all engines, and lets each answer once so that its memory is in place.
    ///
    /// # Errors
    /// Options that contradict each other, folders that do not fit, memory.
    pub fn start(
        args: &Args,
        plain: &EngineConfig,
        candidates: &[Candidate],
        prompts: &Prompts,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        progress("loading the model without speculation");
        let mut engines = Self {
            plain: LocalEngine::start(plain, &LocalOptions::default())?,
            drafting: Vec::new(),
            verification: String::new(),
        };
        let options = LocalOptions {
            registry: registry.clone(),
            ..LocalOptions::default()
        };
        for candidate in candidates {
            progress(&format!("loading it with {}", candidate.name));
            let config = config(args, Some(candidate), prompts, &registry.algorithms())?;
            let engine = LocalEngine::start(&config, &options);
            let engine = engine.with_context(|| candidate.name.clone())?;
            config
                .speculation
                .verification
                .name()
                .clone_into(&mut engines.verification);
            engines.drafting.push((candidate.name.clone(), engine));
        }
        Ok(engines)
    }

    /// Descriptions of the devices that the ranks compute on.
    pub fn descriptions(&self) -> Vec<String> {
        self.plain.descriptions().to_vec()
    }

    /// The engine without speculation.
    pub fn plain(&mut self) -> &mut LocalEngine {
        &mut self.plain
    }

    /// The other engines, with their algorithms' names.
    pub fn drafting(&mut self) -> &mut [(String, LocalEngine)] {
        &mut self.drafting
    }

    /// Notes about the configuration that is measured.
    pub fn about(&self, plain: &EngineConfig) -> Vec<(&'static str, Value)> {
        let (model, parallel) = (&plain.model, &plain.parallel);
        let weights = |engine: &LocalEngine| engine.weight_bytes() as f64 * 1e-9;
        let drafts = self.drafting.iter().map(|(name, engine)| {
            let own = weights(engine) - weights(&self.plain);
            format!("{name} {own:.3}")
        });
        vec![
            ("parameters", json!(lockstep_model::parameters(model))),
            ("dtype", json!(plain.dtype.name())),
            ("quantization", json!(plain.model.quantization.name())),
            ("KV cache dtype", json!(plain.kv.dtype.name())),
            ("tensor-parallel ranks", json!(parallel.tp_size)),
            ("threads per rank", json!(parallel.threads_per_rank)),
            ("page size", json!(plain.kv.page_size)),
            ("overlap", json!(plain.schedule.overlap)),
            ("weights GB", json!(weights(&self.plain))),
            (
                "weights GB of drafting",
                json!(drafts.collect::<Vec<_>>().join(", ")),
            ),
            ("verification", json!(self.verification)),
            ("temperature", json!(0)),
        ]
    }
}

/// The configuration without speculation.
///
/// # Errors
/// Options that contradict each other.
pub fn plain(args: &Args, prompts: &Prompts) -> anyhow::Result<EngineConfig> {
    config(args, None, prompts, &Algorithms::default())
}

fn config(
    args: &Args,
    candidate: Option<&Candidate>,
    prompts: &Prompts,
    algorithms: &Algorithms,
) -> anyhow::Result<EngineConfig> {
    let serve = ServeArgs::of_engine(
        args.model.clone(),
        args.parallel.clone(),
        args.memory.clone(),
        args.schedule.clone(),
    );
    let room = Room {
        requests: args.batch.iter().copied().max().unwrap_or(1),
        longest: prompts.longest() + args.max_tokens as usize,
        cached: 0,
        prefixes: 0,
    };
    let drafting = Drafting {
        candidate,
        steps: args.steps.iter().copied().max().unwrap_or(1) as usize,
        options: &args.speculation,
    };
    resolve(serve, drafting, room, algorithms)
}

/// The drafting algorithm and its greatest depth.
#[derive(Debug, Clone, Copy)]
pub struct Drafting<'a> {
    /// The algorithm; `None` to run without.
    pub candidate: Option<&'a Candidate>,
    /// The greatest depth that is tried.
    pub steps: usize,
    /// Other options of speculation that were given.
    pub options: &'a SpeculationArgs,
}

/// Room in the memory that engines share, unless sizes are given.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Requests that run at once.
    pub requests: usize,
    /// Tokens of the longest prompt and its answer.
    pub longest: usize,
    /// Tokens that stay in the prefix cache beside the running requests.
    pub cached: usize,
    /// Texts among these from whose end requests go on, in each DP rank. A model with recurrent
    /// layers has a state for each, if there are any.
    pub prefixes: usize,
}

/// Resolves the configuration of `serve` with room for this work and no more.
///
/// # Errors
/// Options that contradict each other.
pub fn resolve(
    mut serve: ServeArgs,
    drafting: Drafting<'_>,
    room: Room,
    algorithms: &Algorithms,
) -> anyhow::Result<EngineConfig> {
    let Drafting {
        candidate,
        steps,
        options,
    } = drafting;
    if let Some(candidate) = candidate {
        serve.speculation = SpeculationArgs {
            speculative_algorithm: Some(candidate.name.clone()),
            speculative_draft_model_path: candidate.folder.clone(),
            speculative_num_steps: Some(steps),
            ..options.clone()
        };
    }
    let topk = options.speculative_eagle_topk.unwrap_or(1);
    let verified = options.speculative_num_draft_tokens.unwrap_or(0);
    // Two steps may be under way, each with its drafts.
    let longest = room.longest + 2 * verified.max(steps * topk + 1) + 16;
    let page = serve.memory.page_size.unwrap_or(16);
    serve.model.context_length.get_or_insert(longest);
    let requests = room.requests;
    // Each DP rank runs at least one request.
    let running = requests.max(serve.parallel.dp_size.unwrap_or(1));
    let running = *serve.schedule.max_running_requests.get_or_insert(running);
    let tokens = requests * (longest + page) + room.cached + page;
    serve.memory.max_total_tokens.get_or_insert(tokens);
    if let Some(states) = states(&serve, room, running) {
        serve.memory.max_mamba_cache_size.get_or_insert(states);
    }
    let resolved = lockstep_config::resolve(
        &serve,
        &Hardware::detect(),
        algorithms,
        &lockstep_devices::DeviceFootprint,
    )?;
    tell(&resolved.notes);
    Ok(resolved.value.0)
}

/// States of recurrent layers that keep all prefixes in the cache; `None` if there are none to
/// keep, or the model has no such layers. A running request has a live state and one that trails
/// behind it; a prefix has one, and so has the end of its answer. What is wrong with the model is
/// reported later.
fn states(serve: &ServeArgs, room: Room, running: usize) -> Option<usize> {
    let described = Described::of(serve.model.model_path.as_deref()?).ok()?;
    let needed = room.prefixes > 0 && described.model.has_states();
    let running = running.div_ceil(serve.parallel.dp_size.unwrap_or(1));
    needed.then_some(2 * (running + room.prefixes))
}

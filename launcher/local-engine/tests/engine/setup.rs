//! Engines configured by their flags.

use std::path::{Path, PathBuf};

use lockstep_config::{
    Hardware, ServeArgs,
    args::{DeviceArg, DtypeArg, PolicyArg},
    resolve,
};
use lockstep_devices::Registry;
use lockstep_local_engine::{Completion, LocalEngine, LocalOptions};
use lockstep_types::{ConfigError, Dtype, EngineConfig};
use lockstep_types::{
    request::{FinishReason, Request},
    sampling::{LogprobParams, SamplingParams},
};

/// One configuration; the fields are flags of `lockstep serve`.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Folder from the repository's root.
    pub model: String,
    pub dtype: Dtype,
    pub tp: usize,
    pub threads: usize,
    pub page: usize,
    /// `None`: whole prompts.
    pub chunk: Option<i64>,
    pub overlap: bool,
    pub radix: bool,
    pub lpm: bool,
    pub priorities: bool,
    /// Requests that run at once.
    pub running: usize,
    /// KV tokens.
    pub tokens: usize,
    pub context: usize,
    /// Steps, branches and verified tokens of drafts by the model's own layer.
    pub own_drafts: Option<[usize; 3]>,
}

impl Setup {
    /// The demo model, with room for all goldens at once.
    pub fn demo(dtype: Dtype, tp: usize) -> Self {
        Self {
            model: "models/lockstep-demo-7m".into(),
            dtype,
            tp,
            threads: 1,
            page: 16,
            chunk: Some(512),
            overlap: true,
            radix: true,
            lpm: false,
            priorities: false,
            running: 32,
            tokens: 8192,
            context: 512,
            own_drafts: None,
        }
    }

    /// A random model of `tests/fixtures/architectures`.
    pub fn random(architecture: &str, dtype: Dtype, tp: usize) -> Self {
        Self {
            model: format!("tests/fixtures/architectures/{architecture}"),
            context: 256,
            ..Self::demo(dtype, tp)
        }
    }

    /// Resolves the configuration for the processor, like `lockstep serve`.
    pub fn config(&self) -> EngineConfig {
        let config = self.config_on(DeviceArg::Cpu);
        config.unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// Resolves the configuration for a device, on a machine that is always the same.
    pub fn config_on(&self, device: DeviceArg) -> Result<EngineConfig, ConfigError> {
        let mut args = ServeArgs::default();
        args.model.model_path = Some(root().join(&self.model));
        args.model.dtype = Some(match self.dtype {
            Dtype::Bfloat16 => DtypeArg::Bfloat16,
            Dtype::Float32 => DtypeArg::Float32,
        });
        args.model.context_length = Some(self.context);
        args.parallel.tp_size = Some(self.tp);
        args.parallel.device = Some(device);
        // One thread drives a GPU.
        args.parallel.threads_per_rank = (device == DeviceArg::Cpu).then_some(self.threads);
        args.memory.page_size = Some(self.page);
        args.memory.max_total_tokens = Some(self.tokens);
        args.memory.disable_radix_cache = !self.radix;
        args.schedule.max_running_requests = Some(self.running);
        args.schedule.chunked_prefill_size = Some(self.chunk.unwrap_or(-1));
        args.schedule.schedule_policy = self.lpm.then_some(PolicyArg::Lpm);
        args.schedule.disable_overlap_schedule = !self.overlap;
        args.schedule.enable_priority_scheduling = self.priorities;
        if let Some([steps, branches, tokens]) = self.own_drafts {
            let drafts = &mut args.speculation;
            drafts.speculative_algorithm = Some("NEXTN".to_owned());
            drafts.speculative_num_steps = Some(steps);
            drafts.speculative_eagle_topk = Some(branches);
            drafts.speculative_num_draft_tokens = Some(tokens);
        }
        let machine = Hardware {
            cores: vec![0, 1],
            total_memory: 8 << 30,
            available_memory: 8 << 30,
            memory_limit: None,
        };
        let (known, footprint) = (
            Registry::builtin().algorithms(),
            lockstep_devices::DeviceFootprint,
        );
        let resolved = resolve(&args, &machine, &known, &footprint);
        resolved.map(|resolved| resolved.value.0)
    }

    /// Starts the engine on the processor.
    pub fn start(&self) -> LocalEngine {
        self.start_with(&self.config())
    }

    /// Starts the engine on GPUs.
    pub fn start_on_gpus(&self) -> LocalEngine {
        let config = self.config_on(DeviceArg::Cuda);
        self.start_with(&config.unwrap_or_else(|error| panic!("{self:?}: {error}")))
    }

    fn start_with(&self, config: &EngineConfig) -> LocalEngine {
        LocalEngine::start(config, &LocalOptions::default())
            .unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

/// Root folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A request that reports nothing beside its tokens.
pub fn request(prompt: &[u32], max_new_tokens: u32, sampling: SamplingParams) -> Request {
    Request {
        generation: sampling.into(),
        ..Request::new(prompt.to_vec(), max_new_tokens)
    }
}

/// A request like [`request`], with log-probabilities of the output and, from `prompt_start`
/// on, of the prompt, with five alternatives each.
pub fn reported(
    prompt: &[u32],
    max_new_tokens: u32,
    sampling: SamplingParams,
    prompt_start: Option<u32>,
) -> Request {
    let mut reported = request(prompt, max_new_tokens, sampling);
    reported.generation.logprobs = LogprobParams {
        output: true,
        top: 5,
        prompt_start,
    };
    reported
}

/// Runs requests together until all end well, and checks the planner's books afterwards.
pub fn together(engine: &mut LocalEngine, requests: Vec<Request>) -> Vec<Completion> {
    let completions = engine.run(requests).unwrap();
    for completion in &completions {
        let finish = completion.finish.as_ref().expect("it ended");
        assert!(
            matches!(
                finish.outcome,
                Ok(FinishReason::Stop | FinishReason::Length)
            ),
            "{finish:?}"
        );
        let tokens = completion.token_ids.len() as u32;
        assert_eq!(finish.usage.completion_tokens, tokens);
    }
    idle(engine);
    completions
}

/// Runs requests like [`together`], but one after the other.
pub fn alone(engine: &mut LocalEngine, requests: Vec<Request>) -> Vec<Completion> {
    let one = |request| together(engine, vec![request]).remove(0);
    requests.into_iter().map(one).collect()
}

/// Asserts that an engine without requests holds nothing but its prefix cache.
pub fn idle(engine: &LocalEngine) {
    engine.check_integrity().unwrap();
    let load = engine.load();
    let busy = (
        load.running_requests,
        load.waiting_requests,
        load.waiting_tokens,
        load.kv_tokens_used,
        load.leaked_pages,
        load.steps_in_flight,
    );
    assert_eq!(busy, (0, 0, 0, 0, 0, 0), "{load:?}");
}

/// Empties the prefix cache.
pub fn flush(engine: &mut LocalEngine) {
    let cached = engine.load().kv_tokens_cached;
    assert_eq!(engine.flush_cache().unwrap(), cached);
    assert_eq!(engine.load().kv_tokens_cached, 0);
    idle(engine);
}

/// Prompt tokens that came from the cache.
pub fn cached(completion: &Completion) -> u32 {
    let finish = completion.finish.as_ref().expect("it ended");
    finish.usage.cached_tokens
}

//! The demo model, its configuration, and a hand-made scheduler.

use std::{collections::VecDeque, path::PathBuf};

use lockstep_backend::Groups;
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::Single;
use lockstep_devices::{Device as _, DeviceOptions};
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    AdapterLimits, AnswersConfig, ConnectionLimits, DeviceConfig, Dtype, EngineConfig,
    KvCacheDtype, KvConfig, LimitsConfig, ParallelConfig, RequestLimits, ScheduleConfig,
    SchedulePolicy, ServerConfig, SpeculationConfig, TimeoutConfig, WebConfig,
};
use lockstep_types::{
    generation::GenerationParams,
    sampling::{LogprobParams, SamplingParams, TokenLogprob},
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan, StepResult},
};

use crate::worker::{Worker, WorkerError, WorkerOptions, local::LocalGroup};

pub const CONTEXT: usize = 320;
pub const SLOTS: usize = 40;

pub fn repository() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let above = here
        .ancestors()
        .find(|folder| folder.join("models").is_dir());
    above
        .expect("the repository is above its packages")
        .to_owned()
}

/// Loads a worker as its configuration says.
pub fn load(
    config: &EngineConfig,
    rank: usize,
    groups: impl Into<Groups>,
) -> Result<Worker<CpuBackend>, WorkerError> {
    let options = WorkerOptions {
        drafters: &DrafterRegistry::builtin(),
        weight_cache: None,
        progress: &mut |_| {},
    };
    Worker::load(config, rank, cpu(config, groups), options)
}

/// Loads a worker without peers, as [`load`] does.
pub fn load_alone(config: &EngineConfig) -> Result<Worker<CpuBackend>, WorkerError> {
    load(config, 0, Box::new(Single::new()))
}

/// Opens a rank's cores as its configuration says.
pub fn cpu(config: &EngineConfig, groups: impl Into<Groups>) -> CpuBackend {
    CpuBackend::open(&DeviceOptions::new(config), groups).unwrap()
}

pub fn config(tp_size: usize, page_size: usize, dtype: Dtype) -> EngineConfig {
    EngineConfig {
        model: lockstep_model_folder::load(&repository().join("models/lockstep-demo-7m")).unwrap(),
        dtype,
        device: DeviceConfig::default(),
        isa: None,
        graphs: Vec::new(),
        parallel: ParallelConfig {
            tp_size,
            dp_size: 1,
            ep_size: 1,
            nnodes: 1,
            dist_init_addr: String::new(),
            threads_per_rank: 1,
            tokenizer_managers: 1,
            collectives: Default::default(),
        },
        kv: KvConfig {
            page_size,
            num_pages: SLOTS * CONTEXT / page_size + 1,
            states: 0,
            dtype: match dtype {
                Dtype::Bfloat16 => KvCacheDtype::Bfloat16,
                Dtype::Float32 => KvCacheDtype::Float32,
            },
            radix_cache: true,
        },
        schedule: ScheduleConfig {
            max_running_requests: SLOTS,
            max_queued_requests: 1,
            max_queued_tokens: 1,
            max_prefill_tokens: 2048,
            chunked_prefill_size: None,
            policy: SchedulePolicy::Fcfs,
            priorities: false,
            overlap: false,
        },
        speculation: SpeculationConfig::none(),
        adapters: AdapterLimits::default(),
        timeouts: TimeoutConfig {
            request_s: None,
            queue_s: None,
            step_watchdog_s: 60,
            health_s: 60,
            drain_s: 60,
            drain_delay_s: 0,
            startup_s: 60,
            weight_update_s: 60,
        },
        server: server(),
    }
}

fn server() -> ServerConfig {
    ServerConfig {
        host: String::new(),
        port: 0,
        grpc_port: None,
        sglang_grpc_port: None,
        served_model_name: "demo".to_owned(),
        served_model_aliases: Vec::new(),
        context_length: CONTEXT,
        api_key_required: false,
        sglang_metrics: false,
        web: WebConfig::default(),
        answers: AnswersConfig::default(),
        limits: LimitsConfig {
            body_bytes: 0,
            header_bytes: 0,
            json_depth: 0,
            memory_bytes: 0,
            connections: ConnectionLimits {
                per_port: 0,
                per_peer: 0,
                streams: 0,
                first_byte_s: 0,
                head_s: 0,
                body_s: 0,
                body_rate: 0,
                send_s: 0,
                keep_alive_s: 0,
            },
            request: RequestLimits {
                messages: 0,
                tools: 0,
                tool_bytes: 0,
                prompts: 0,
                choices: 0,
                top_logprobs: 20,
                stops: 0,
                stop_bytes: 0,
                stop_token_ids: 0,
                logit_bias: 0,
            },
        },
    }
}

/// A request of a test.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sampling: SamplingParams,
    pub logprobs: LogprobParams,
    pub max_new_tokens: usize,
}

impl Request {
    pub fn greedy(prompt: &[u32], max_new_tokens: usize) -> Self {
        Self {
            prompt: prompt.to_vec(),
            sampling: SamplingParams {
                stop_token_ids: vec![2],
                ..SamplingParams::greedy()
            },
            logprobs: LogprobParams {
                output: true,
                top: 2,
                prompt_start: None,
            },
            max_new_tokens,
        }
    }
}

/// Results of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generated {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<TokenLogprob>,
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Accepted drafts of each round, not cut at the end of the output.
    pub accepted: Vec<u32>,
}

/// A request in a slot.
struct Running {
    request: usize,
    slot: u32,
    prefilled: usize,
    granted: usize,
    pages: Vec<u32>,
}

/// A scheduler that makes plans by hand. It runs up to `batch` requests at once, and computes
/// prompts in chunks of `chunk` tokens. Pages come from a stack, so that page tables are out of
/// order.
pub struct Scheduler<'g> {
    group: &'g LocalGroup,
    page_size: usize,
    chunk: usize,
    batch: usize,
    /// Draft steps of plans, in turn.
    pub draft_steps: Vec<u32>,
    /// Most positions that a decode step may write.
    reserve: usize,
    step: &'g mut u64,
    free_pages: Vec<u32>,
    free_slots: Vec<u32>,
}

impl<'g> Scheduler<'g> {
    pub fn new(
        group: &'g LocalGroup,
        step: &'g mut u64,
        config: &EngineConfig,
        chunk: usize,
        batch: usize,
    ) -> Self {
        Self {
            group,
            page_size: config.kv.page_size,
            chunk,
            batch,
            draft_steps: vec![config.speculation.num_steps as u32],
            reserve: (config.speculation.num_steps * config.speculation.topk)
                .max(config.speculation.num_draft_tokens)
                .max(1),
            step,
            free_pages: (1..config.kv.num_pages as u32).collect(),
            free_slots: (0..SLOTS as u32).collect(),
        }
    }

    pub fn run(&mut self, requests: &[Request]) -> Result<Vec<Generated>, WorkerError> {
        let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
        let mut running: Vec<Running> = Vec::new();
        let mut generated = vec![Generated::default(); requests.len()];
        let mut closes = Vec::new();
        while !(waiting.is_empty() && running.is_empty() && closes.is_empty()) {
            *self.step += 1;
            let mut part = PlanPart {
                closes: std::mem::take(&mut closes),
                ..PlanPart::default()
            };
            while running.len() < self.batch
                && let Some(request) = waiting.pop_front()
            {
                let slot = self.free_slots.pop().unwrap();
                part.opens.push(open(slot, &requests[request]));
                running.push(Running {
                    request,
                    slot,
                    prefilled: 0,
                    granted: 0,
                    pages: Vec::new(),
                });
            }
            for row in &mut running {
                let total = requests[row.request].prompt.len();
                let produced = generated[row.request].tokens.len();
                part.extends.push(self.extend(row, total, produced));
            }
            let result = self.group.step(StepPlan {
                step: *self.step,
                draft_steps: self.draft_steps[*self.step as usize % self.draft_steps.len()],
                parts: vec![part],
                ..StepPlan::default()
            })?;
            collect(result, &running, requests, &mut generated);
            running.retain_mut(|row| {
                let (request, output) = (&requests[row.request], &generated[row.request].tokens);
                let stopped = output
                    .last()
                    .is_some_and(|t| request.sampling.stop_token_ids.contains(t));
                let ends = stopped || output.len() == request.max_new_tokens;
                if ends {
                    closes.push(row.slot);
                    self.free_slots.push(row.slot);
                    self.free_pages.append(&mut row.pages);
                }
                !ends
            });
        }
        Ok(generated)
    }

    fn extend(&mut self, row: &mut Running, prompt: usize, produced: usize) -> SlotExtend {
        let chunk = self.chunk.min(prompt - row.prefilled);
        row.prefilled += chunk;
        let decoded = produced.saturating_sub(1) + self.reserve;
        let end = row.prefilled + if chunk == 0 { decoded } else { 0 };
        let needed = end.div_ceil(self.page_size).max(row.granted);
        let at = self.free_pages.len() - (needed - row.granted);
        let new_pages = self.free_pages.split_off(at);
        row.granted = needed;
        row.pages.extend(&new_pages);
        SlotExtend {
            slot: row.slot,
            prefill_len: chunk as u32,
            sample: row.prefilled == prompt,
            new_pages,
            ..SlotExtend::default()
        }
    }
}

pub fn open(slot: u32, request: &Request) -> SlotOpen {
    SlotOpen {
        generation: GenerationParams {
            sampling: request.sampling.clone(),
            logprobs: request.logprobs,
            ..GenerationParams::default()
        },
        ..SlotOpen::new(slot, request.prompt.clone())
    }
}

/// Makes a row of a batch, with pages granted.
pub fn row(slot: u32, prefill_len: u32, sample: bool, new_pages: &[u32]) -> SlotExtend {
    SlotExtend {
        slot,
        prefill_len,
        sample,
        new_pages: new_pages.to_vec(),
        ..SlotExtend::default()
    }
}

/// Takes in outputs, cut where their requests end.
fn collect(
    result: StepResult,
    running: &[Running],
    requests: &[Request],
    generated: &mut [Generated],
) {
    for mut output in result.outputs.into_iter().flatten() {
        let row = running.iter().find(|row| row.slot == output.slot).unwrap();
        let (request, generated) = (&requests[row.request], &mut generated[row.request]);
        if !generated.tokens.is_empty() {
            let accepted = output.token_ids.len() as u32 - 1;
            assert!(accepted <= output.draft_depth && output.draft_depth <= output.draft_tokens);
            generated.accepted.push(accepted);
        }
        let left = request.max_new_tokens - generated.tokens.len();
        let stops = |token: &u32| request.sampling.stop_token_ids.contains(token);
        let stop = output.token_ids.iter().position(stops);
        let taken = left.min(stop.map_or(usize::MAX, |at| at + 1));
        output.token_ids.truncate(taken);
        output.logprobs.truncate(taken);
        generated.tokens.extend(output.token_ids);
        generated.logprobs.extend(output.logprobs);
        generated.prompt_logprobs.extend(output.prompt_logprobs);
    }
}

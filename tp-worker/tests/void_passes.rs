//! Ranks on GPUs of their own, one of which loses its recorded passes. Before they serve, all
//! ranks record anew. While they serve, the ranks learn that they differ, since a pass recorded
//! on one rank meets no pass that is not recorded on another. Started by cargo on fake GPUs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockstep_backend::Backend;
use lockstep_backend_cuda::{CudaBackend, Gpu};
use lockstep_collective::local_group;
use lockstep_config::{
    Hardware, ServeArgs,
    args::{CollectiveBackendArg, DeviceArg},
    resolve,
};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions};
use lockstep_speculation::{
    Build, Device, DraftError, DraftRow, Drafter, DrafterFactory, DrafterRegistry, Drafts, Node,
};
use lockstep_tp_worker::worker::{Worker, WorkerError, WorkerOptions};
use lockstep_types::{
    Algorithm, Capabilities, EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

const RANKS: usize = 2;
const PROMPT: u32 = 24;
const STEPS: u64 = 6;

/// An algorithm that drafts a token for each request, and makes its rank's recorded passes
/// void.
#[derive(Debug, Clone, Copy)]
struct Voiding {
    /// Number of times that it does so while it records.
    recording: u32,
    /// The draft with which it does so again; the first draft has number 0.
    draft: Option<u32>,
}

impl Algorithm for Voiding {
    fn name(&self) -> &str {
        "VOIDING"
    }
    fn summary(&self) -> &str {
        "one token each, and memory that others have recorded"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

impl<B: Backend> DrafterFactory<B> for Voiding {
    fn build(&self, _: Build<'_, B>) -> Result<Box<dyn Drafter<B>>, DraftError> {
        Ok(Box::new(VoidingDrafter {
            how: *self,
            drafted: 0,
        }))
    }
}

struct VoidingDrafter {
    how: Voiding,
    drafted: u32,
}

impl<B: Backend> Drafter<B> for VoidingDrafter {
    fn record(
        &mut self,
        device: &mut Device<'_, B>,
        _: &mut dyn FnMut(usize),
    ) -> Result<(), DraftError> {
        if self.how.recording > 0 {
            self.how.recording -= 1;
            device.backend.forget_passes();
        }
        Ok(())
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        if self.how.draft == Some(self.drafted) {
            device.backend.forget_passes();
        }
        self.drafted += 1;
        let (token, parent) = (7, 0);
        for at in 0..rows.len() {
            drafts.push(at, Node { token, parent });
        }
        Ok(())
    }
}

fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("tests/fixtures/architectures/llama")
}

fn registry(how: Voiding) -> DrafterRegistry<CudaBackend> {
    DrafterRegistry::empty().with(how)
}

fn config(how: Voiding) -> EngineConfig {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model());
    args.model.context_length = Some(128);
    args.parallel.device = Some(DeviceArg::Cuda);
    args.parallel.tp_size = Some(RANKS);
    args.parallel.collective_backend = Some(CollectiveBackendArg::Nccl);
    args.memory.max_total_tokens = Some(512);
    args.schedule.max_running_requests = Some(1);
    args.speculation.speculative_algorithm = Some("VOIDING".to_owned());
    args.speculation.speculative_num_steps = Some(1);
    args.speculation.speculative_num_draft_tokens = Some(2);
    let algorithms = registry(how).algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &algorithms, &DeviceFootprint);
    resolved.unwrap().value.0
}

/// Returns a plan: a prompt in the first step, then a token and a draft in each.
fn plan(config: &EngineConfig, step: u64) -> StepPlan {
    let first = step == 1;
    let open = SlotOpen {
        generation: SamplingParams::greedy().into(),
        ..SlotOpen::new(0, (0..PROMPT).map(|at| 5 + at % 6).collect())
    };
    let pages = 96u32.div_ceil(config.kv.page_size as u32);
    StepPlan {
        step,
        draft_steps: u32::from(!first),
        parts: vec![PlanPart {
            closes: Vec::new(),
            opens: Some(open).into_iter().filter(|_| first).collect(),
            extends: vec![SlotExtend {
                slot: 0,
                prefill_len: if first { PROMPT } else { 0 },
                sample: true,
                new_pages: (1..=pages).filter(|_| first).collect(),
                ..SlotExtend::default()
            }],
        }],
        ..StepPlan::default()
    }
}

/// Runs the ranks. Returns each rank's text, empty unless it leads, or the error that ended it.
fn run(how: Voiding) -> Vec<Result<Vec<u32>, WorkerError>> {
    let config = Arc::new(config(how));
    let start = |(rank, group)| {
        let config = config.clone();
        thread::spawn(move || {
            let _order = lockstep_fake_cuda::order(1 + rank as u64);
            let options = DeviceOptions::new(&config).of_rank(rank, None);
            let gpu = CudaBackend::open(&options, Box::new(group)).unwrap();
            let options = WorkerOptions {
                drafters: &registry(how),
                weight_cache: None,
                progress: &mut |_| {},
            };
            let mut worker = Worker::load(&config, rank, gpu, options)?;
            let mut text = Vec::new();
            for step in 1..=STEPS {
                let result = worker.step(&plan(&config, step))?;
                let outputs = result.outputs.into_iter();
                text.extend(outputs.flat_map(|output| output.token_ids));
            }
            Ok(text)
        })
    };
    let group = local_group(RANKS).into_iter().enumerate();
    let threads: Vec<_> = group.map(start).collect();
    threads
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect()
}

#[test]
fn what_is_void_on_one_rank_all_record_anew() {
    if Gpu::count().unwrap() < RANKS {
        return;
    }
    let text = |recording| {
        let draft = None;
        let mut found = run(Voiding { recording, draft });
        found.remove(0).unwrap()
    };
    let plain = text(0);
    assert!(plain.len() >= STEPS as usize);
    assert_eq!(text(1), plain);
}

#[test]
fn passes_that_stay_void_end_all_ranks() {
    if Gpu::count().unwrap() < RANKS {
        return;
    }
    let (recording, draft) = (u32::MAX, None);
    for found in run(Voiding { recording, draft }) {
        let Err(WorkerError::Unrecorded { ranks }) = found else {
            panic!("{found:?}");
        };
        assert_eq!(ranks, [0]);
    }
}

#[test]
fn a_rank_that_would_record_while_others_repeat_is_named() {
    if Gpu::count().unwrap() < RANKS {
        return;
    }
    let (recording, draft) = (0, Some(2));
    for found in run(Voiding { recording, draft }) {
        let error = found.unwrap_err();
        assert!(error.is_divergence(), "{error}");
    }
}

//! Depths that change cost no memory: a switch allocates nothing, and six tiers take no more
//! than the largest alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Digest, Moment, Policy, PolicyFactory, Tier};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::Single;
use lockstep_config::{Hardware, ServeArgs, resolve};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions, Registry};
use lockstep_speculation::DrafterRegistry;
use lockstep_tp_worker::worker::{Worker, WorkerOptions};
use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Bytes in use by all threads.
static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise about the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];

/// A policy that lets plans ask for any depth.
#[derive(Debug, Clone)]
struct Deepest;

impl PolicyFactory for Deepest {
    fn name(&self) -> &str {
        "deepest"
    }

    fn summary(&self) -> &str {
        "the greatest depth, of which plans may ask less"
    }

    fn reads_costs(&self) -> bool {
        false
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        Box::new(Self)
    }
}

impl Policy for Deepest {
    fn decide(&mut self, _moment: &Moment<'_>) -> u32 {
        u32::MAX
    }

    fn digest(&self, _digest: &mut Digest) {}
}

fn model(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    root.expect("the models are above this crate")
        .join("models")
        .join(name)
}

fn config() -> EngineConfig {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model("lockstep-demo-7m"));
    args.model.context_length = Some(256);
    args.parallel.threads_per_rank = Some(1);
    args.memory.max_total_tokens = Some(2048);
    args.schedule.max_running_requests = Some(2);
    args.speculation.speculative_algorithm = Some("EAGLE3".to_owned());
    args.speculation.speculative_draft_model_path = Some(model("lockstep-demo-7m-eagle3"));
    args.speculation.speculative_num_steps = Some(7);
    let algorithms = Registry::builtin().algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &algorithms, &DeviceFootprint);
    resolved.unwrap().value.0
}

fn load(config: &EngineConfig) -> Worker<CpuBackend> {
    let mut drafters = DrafterRegistry::builtin();
    drafters.add_policy(Arc::new(Deepest));
    let backend = CpuBackend::open(&DeviceOptions::new(config), Box::new(Single::new()));
    let options = WorkerOptions {
        drafters: &drafters,
        weight_cache: None,
        progress: &mut |_| {},
    };
    Worker::load(config, 0, backend.unwrap(), options).unwrap()
}

/// Returns the allocations of each decode step at `depths`, after a prompt.
fn allocations(worker: &mut Worker<CpuBackend>, depths: &[u32]) -> Vec<usize> {
    let row = |prefill_len, new_pages| SlotExtend {
        slot: 0,
        prefill_len,
        sample: true,
        new_pages,
        ..SlotExtend::default()
    };
    let first = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            opens: vec![SlotOpen {
                generation: SamplingParams::greedy().into(),
                // So many tokens that the text's buffer need not grow.
                ..SlotOpen::new(0, (0..130).map(|at| 5 + at % 90).collect())
            }],
            extends: vec![row(130, (1..=17).collect())],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    worker.step(&first).unwrap();
    let steps = (2..).zip(depths).map(|(step, depth)| {
        let plan = StepPlan {
            step,
            draft_steps: *depth,
            parts: vec![PlanPart {
                extends: vec![row(0, Vec::new())],
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        };
        let before = COUNT.get();
        worker.step(&plan).unwrap();
        COUNT.get() - before
    });
    steps.collect()
}

#[test]
fn switches_allocate_nothing_and_tiers_share_their_memory() {
    let fixed = config();
    let mut adaptive = fixed.clone();
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let tiers = DEPTHS.map(tier).to_vec();
    let slots = vec![BatchSlot::new(1, DEPTHS.to_vec())];
    adaptive.speculation.adaptive = Some(AdaptiveConfig::new("deepest", 7, tiers, slots));
    let bytes_of = |config: &EngineConfig| {
        let before = BYTES.load(Ordering::Relaxed);
        let worker = load(config);
        (BYTES.load(Ordering::Relaxed) - before, worker)
    };
    let (one, _) = bytes_of(&fixed);
    let (six, mut worker) = bytes_of(&adaptive);
    // The decision keeps what it knows of costs, whatever the model's size.
    assert!(six < one + (24 << 10), "one tier takes {one}, six {six}");

    // Every depth twice in a row, then every change between two depths.
    let steady = DEPTHS.iter().flat_map(|depth| [*depth; 2]);
    let changes = DEPTHS
        .iter()
        .flat_map(|from| DEPTHS.iter().flat_map(move |to| [*from, *to]));
    let depths: Vec<u32> = steady.chain(changes).take(44).collect();
    let found = allocations(&mut worker, &depths);
    let most = found[..2 * DEPTHS.len()]
        .iter()
        .skip(1)
        .step_by(2)
        .max()
        .unwrap();
    let later = &found[2 * DEPTHS.len()..];
    assert!(
        later.iter().all(|count| count <= most),
        "a step takes at most {most} allocations; after changes {later:?}"
    );
}

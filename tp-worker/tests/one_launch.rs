//! The calls of a decode step to a GPU that one rank uses, and its host allocations: on the
//! fake GPU, which counts calls.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "one_launch/heads.rs"]
mod heads;
#[path = "one_launch/levels.rs"]
mod levels;
#[path = "one_launch/tables.rs"]
mod tables;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ffi::CStr,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use lockstep_backend_cuda::CudaBackend;
use lockstep_collective::Single;
use lockstep_config::{Hardware, ServeArgs, args::DeviceArg, resolve};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions, Registry};
use lockstep_fake_cuda::calls;
use lockstep_speculation::{
    DrafterRegistry,
    conformance::{Findings, watch},
};
use lockstep_tp_worker::worker::{Worker, WorkerOptions};
use tempfile::TempDir;

use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise about the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of requests of a batch.
const REQUESTS: u32 = 3;
/// Number of decode steps.
const STEPS: u64 = 12;
/// Number of steps after which buffers have their final sizes.
const SETTLED: usize = 4;

/// The calls that a step makes, and their number, if the device does not draft. The counts of a
/// row's functions are summed.
const CALLS: [(&str, &[&CStr], u64); 6] = [
    ("launches of graphs", &[c"cuGraphLaunch"], 1),
    ("launches of kernels", &[c"cuLaunchKernelEx"], 0),
    ("copies to the device", &[c"cuMemcpyHtoDAsync_v2"], 1),
    ("copies from the device", &[c"cuMemcpyDtoHAsync_v2"], 1),
    ("waits", &[c"cuStreamSynchronize", c"cuEventSynchronize"], 1),
    (
        "allocations",
        &[c"cuMemAlloc_v2", c"cuMemHostAlloc", c"cuMemAllocHost_v2"],
        0,
    ),
];

/// Functions by which ranks join and exchange.
const COLLECTIVES: [&CStr; 8] = [
    c"ncclGetUniqueId",
    c"ncclCommInitRankConfig",
    c"ncclAllReduce",
    c"ncclAllGather",
    c"ncclReduceScatter",
    c"ncclBroadcast",
    c"ncclSend",
    c"ncclRecv",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the folder of a small model of random weights, whose texts soon repeat.
fn model() -> PathBuf {
    root().join("tests/fixtures/architectures/llama")
}

/// Returns the folder of the draft: the target itself, or a head that remembers the target's
/// texts.
fn draft(algorithm: &str) -> Option<PathBuf> {
    static HEADS: OnceLock<[TempDir; 2]> = OnceLock::new();
    let heads = || {
        let found = decode(&config(None, false), 0);
        let texts = found.texts;
        [
            heads::eagle(&model(), &texts),
            heads::eagle3(&model(), &texts),
        ]
    };
    match algorithm {
        "STANDALONE" => Some(model()),
        "EAGLE" => Some(HEADS.get_or_init(heads)[0].path().to_owned()),
        "EAGLE3" => Some(HEADS.get_or_init(heads)[1].path().to_owned()),
        _ => None,
    }
}

/// An algorithm, with steps, branches and tokens of its drafts.
type Drafts = Option<(&'static str, [usize; 3])>;
const DRAFTS: [Drafts; 10] = [
    None,
    Some(("NGRAM", [3, 1, 4])),
    Some(("NGRAM", [3, 2, 6])),
    Some(("STANDALONE", [1, 1, 2])),
    Some(("STANDALONE", [3, 1, 4])),
    Some(("EAGLE", [3, 1, 4])),
    Some(("EAGLE3", [3, 1, 4])),
    Some(("STANDALONE", [3, 2, 6])),
    Some(("EAGLE", [3, 2, 8])),
    Some(("EAGLE3", [3, 3, 9])),
];
/// The algorithms that draft on the device.
const MODELS: [&str; 3] = ["STANDALONE", "EAGLE", "EAGLE3"];

/// Returns the number of graphs that a step launches: one more if the device drafts.
fn graphs(drafts: Drafts) -> u64 {
    match drafts {
        Some((algorithm, _)) if MODELS.contains(&algorithm) => 2,
        _ => 1,
    }
}

fn config(drafts: Drafts, records: bool) -> EngineConfig {
    resolved(&args(drafts, records))
}

fn resolved(args: &ServeArgs) -> EngineConfig {
    let algorithms = Registry::builtin().algorithms();
    let resolved = resolve(args, &Hardware::detect(), &algorithms, &DeviceFootprint);
    resolved.unwrap().value.0
}

fn args(drafts: Drafts, records: bool) -> ServeArgs {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model());
    args.model.context_length = Some(128);
    args.parallel.device = Some(DeviceArg::Cuda);
    args.graphs.disable_cuda_graph = !records;
    args.memory.max_total_tokens = Some(1024);
    args.schedule.max_running_requests = Some(4);
    if let Some((algorithm, [steps, branches, tokens])) = drafts {
        args.speculation.speculative_algorithm = Some(algorithm.to_owned());
        args.speculation.speculative_draft_model_path = draft(algorithm);
        args.speculation.speculative_num_steps = Some(steps);
        args.speculation.speculative_eagle_topk = Some(branches);
        args.speculation.speculative_num_draft_tokens = Some(tokens);
        args.speculation.speculative_adaptive = Some(false);
    }
    args
}

/// Loads a worker. Its drafts are in the findings.
fn load(config: &EngineConfig) -> (Worker<CudaBackend>, Findings) {
    let (drafters, findings) = watch(&DrafterRegistry::builtin());
    let backend = CudaBackend::open(&DeviceOptions::new(config), Box::new(Single::new()));
    let options = WorkerOptions {
        drafters: &drafters,
        weight_cache: None,
        progress: &mut |_| {},
    };
    let worker = Worker::load(config, 0, backend.unwrap(), options);
    (worker.unwrap(), findings)
}

/// Opens a request with a prompt that repeats itself. The device can choose its tokens, unless
/// it is `reported`: its log-probabilities are then reported, and the host chooses.
fn open(slot: u32, reported: bool) -> SlotOpen {
    let prompt = (0..24).map(|at| 5 + (at + slot) % 6);
    let mut open = SlotOpen::new(slot, prompt.collect());
    open.generation.sampling = match slot {
        0 => SamplingParams::greedy(),
        _ => SamplingParams {
            top_k: 3,
            temperature: 0.3,
            seed: u64::from(slot),
            ..SamplingParams::default()
        },
    };
    open.generation.logprobs.output = reported;
    open
}

/// Returns the plan of a step at `depth`. The first step has the prompts, and the first
/// `reported` requests report log-probabilities.
fn plan(config: &EngineConfig, step: u64, depth: u32, reported: u32) -> StepPlan {
    let first = step == 1;
    let pages = 96u32.div_ceil(config.kv.page_size as u32);
    let extend = |slot| SlotExtend {
        slot,
        prefill_len: if first { 24 } else { 0 },
        sample: true,
        new_pages: match first {
            true => (1 + slot * pages..1 + (slot + 1) * pages).collect(),
            false => Vec::new(),
        },
        ..SlotExtend::default()
    };
    let slots = (0..REQUESTS).filter(|_| first);
    let opens = slots.map(|slot| open(slot, slot < reported));
    StepPlan {
        step,
        draft_steps: if first { 0 } else { depth },
        parts: vec![PlanPart {
            opens: opens.collect(),
            extends: (0..REQUESTS).map(extend).collect(),
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    }
}

/// Returns the number of calls so far, by [`CALLS`].
fn made() -> [u64; CALLS.len()] {
    CALLS.map(|(_, names, _)| {
        let counts = names.iter().map(|name| calls(name).unwrap_or_default());
        counts.sum::<u64>()
    })
}

/// Returns the number of graphs made so far.
fn recorded() -> u64 {
    calls(c"cuGraphInstantiateWithFlags").unwrap_or_default()
}

/// Calls of each decode step, and the results of all steps.
#[derive(Default)]
struct Found {
    calls: Vec<[u64; CALLS.len()]>,
    allocations: Vec<usize>,
    /// Texts by slot.
    texts: [Vec<u32>; REQUESTS as usize],
    drafted: usize,
    accepted: usize,
    /// Digest of all drafts.
    drafts: u64,
    /// Number of graphs that were made during the steps.
    recorded: u64,
    /// Number of calls that this thread has ever made, by [`COLLECTIVES`].
    collectives: [u64; COLLECTIVES.len()],
}

/// Runs decode steps at each of `depths`, again and again.
fn decode_at(config: &EngineConfig, reported: u32, depths: &[usize]) -> Found {
    let (mut worker, findings) = load(config);
    worker.step(&plan(config, 1, 0, reported)).unwrap();
    let graphs = recorded();
    let mut depths = depths.iter().cycle();
    let mut found = Found::default();
    for step in 2..2 + STEPS {
        let depth = depths.next().copied().unwrap_or_default();
        let plan = plan(config, step, depth as u32, reported);
        let (before, allocated) = (made(), COUNT.get());
        let result = worker.step(&plan).unwrap();
        found.allocations.push(COUNT.get() - allocated);
        let now = made();
        let each = std::array::from_fn(|at| now[at] - before[at]);
        found.calls.push(each);
        for output in &result.outputs {
            found.texts[output.slot as usize].extend(&output.token_ids);
            found.drafted += output.draft_tokens as usize;
            found.accepted += output.token_ids.len() - 1;
        }
    }
    found.drafts = findings.digest();
    found.recorded = recorded() - graphs;
    found.collectives = COLLECTIVES.map(|name| calls(name).unwrap_or_default());
    found
}

fn decode(config: &EngineConfig, reported: u32) -> Found {
    decode_at(config, reported, &[config.speculation.num_steps])
}

/// Returns the results of recorded passes with each of [`DRAFTS`].
fn decoded() -> &'static [Found] {
    static FOUND: OnceLock<Vec<Found>> = OnceLock::new();
    let each = |(seed, drafts)| {
        let config = config(drafts, true);
        let _order = lockstep_fake_cuda::order(seed);
        decode(&config, 0)
    };
    FOUND.get_or_init(|| (1..).zip(DRAFTS).map(each).collect())
}

/// The calls of a step are the same, whatever is drafted and accepted.
#[test]
fn a_decode_step_is_one_launch_two_copies_and_one_wait() {
    if calls(c"cuInit").is_none() {
        return; // A real driver does not count.
    }
    for (found, drafts) in decoded().iter().zip(DRAFTS) {
        for (at, calls) in found.calls.iter().enumerate() {
            for (number, (made, (what, _, most))) in calls.iter().zip(CALLS).enumerate() {
                let most = if number == 0 { graphs(drafts) } else { most };
                assert_eq!(*made, most, "{what} of step {at} with {drafts:?}");
            }
        }
        let speculates = drafts.is_some();
        assert_eq!(found.drafted > 0, speculates, "{drafts:?}");
        assert_eq!(found.accepted > 0, speculates, "{drafts:?}");
        // There is no other rank to exchange anything with, from the start on.
        assert_eq!(found.collectives, [0; COLLECTIVES.len()], "{drafts:?}");
    }
}

/// A step's result is allocated anew: a list of outputs, and the tokens of each output. Nothing
/// else is, once all buffers have their sizes. NGRAM's memory of texts still grows.
#[test]
fn a_decode_step_allocates_nothing_but_its_result() {
    for (found, drafts) in decoded().iter().zip(DRAFTS) {
        let most = 1 + REQUESTS as usize;
        let mut later = found.allocations[SETTLED..].to_vec();
        later.sort_unstable();
        let usual = match drafts {
            None => later[later.len() - 1],
            Some(_) => later[later.len() / 2 - 1],
        };
        assert!(usual <= most, "with {drafts:?}: {:?}", found.allocations);
    }
}

/// A depth that changes records nothing. Drafts and texts do not depend on who drafts, nor at
/// which depths.
#[test]
fn chains_of_all_depths_are_one_family() {
    for algorithm in MODELS {
        compare(algorithm, [4, 1, 5], &[4, 1, 3, 2, 2, 4, 3], true);
    }
}

/// In a step that drafts nothing, a head takes nothing in. It catches up later, and nothing is
/// lost.
#[test]
fn what_waits_for_a_chain_is_taken_in_without_one() {
    for algorithm in &MODELS[1..] {
        compare(algorithm, [4, 1, 5], &[2, 0, 3, 3, 0, 0, 1, 2], false);
        compare(algorithm, [4, 2, 8], &[2, 0, 3, 3, 0, 0, 1, 2], false);
    }
}

/// Trees whose depth changes record nothing either, and drafts and texts stay.
#[test]
fn trees_of_all_depths_are_one_family() {
    let shapes = [[4, 2, 8], [4, 3, 12], [4, 2, 6]];
    for (algorithm, shape) in MODELS.into_iter().zip(shapes) {
        compare(algorithm, shape, &[4, 1, 3, 2, 2, 4, 3], true);
    }
}

/// Compares drafts and texts of steps at `depths`, made in three ways: by recorded passes; by
/// the host, since it has to choose some row's tokens; and by the device without recording.
/// `all` is true if all steps draft.
fn compare(algorithm: &'static str, shape: [usize; 3], depths: &[usize], all: bool) {
    let mut before = None;
    for (seed, reported) in [(1, 0), (2, 1), (3, 0)] {
        let _order = lockstep_fake_cuda::order(seed);
        let config = config(Some((algorithm, shape)), seed < 3);
        let found = decode_at(&config, reported, depths);
        if calls(c"cuInit").is_some() {
            let launches = found.calls.iter().map(|calls| calls[0]);
            let of_device = launches.filter(|launches| *launches == 2).count();
            let on_device = seed == 1 && all;
            assert_eq!(of_device == found.calls.len(), on_device, "{algorithm}");
            assert_eq!(found.recorded, 0, "{algorithm}");
        }
        assert!(
            found.drafted > found.accepted && found.accepted > 0,
            "{algorithm}: {} of {}",
            found.accepted,
            found.drafted
        );
        let now = (found.drafts, found.texts, found.drafted, found.accepted);
        let first = before.get_or_insert_with(|| now.clone());
        assert!(
            *first == now,
            "{algorithm} with {seed}: {now:?} for {first:?}"
        );
    }
}

/// Texts do not depend on recording, nor on how many rows' tokens the host chooses.
#[test]
fn texts_are_the_same_whoever_chooses() {
    for drafts in DRAFTS {
        if graphs(drafts) > 1 {
            continue; // Drafts that are the host's, too, have a test of their own.
        }
        let mut texts = Vec::new();
        for (seed, records) in (1..=5).zip([true, false].into_iter().cycle()) {
            let _order = lockstep_fake_cuda::order(seed);
            let config = config(drafts, records);
            let reported = [0, 1, REQUESTS, 2, 0][seed as usize - 1];
            let found = decode(&config, reported);
            assert!(drafts.is_none() || found.accepted > 0);
            let what = || format!("{drafts:?}, {records}, {reported} are the host's");
            let steps = STEPS as usize;
            assert!(
                found.texts.iter().all(|text| text.len() >= steps),
                "{}",
                what()
            );
            texts.push(found.texts.map(|text| text[..steps].to_vec()));
            assert_eq!(texts[0], texts[texts.len() - 1], "{}", what());
        }
    }
}

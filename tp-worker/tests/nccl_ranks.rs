//! Tensor-parallel ranks on GPUs of their own. Their texts equal the texts of one GPU. It makes
//! no difference which way data goes, if passes are recorded, which drafter there is, or if new
//! weights have come. Started by cargo on fake GPUs, which count calls.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "one_launch/heads.rs"]
mod heads;

use std::{
    ffi::CStr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use lockstep_backend_cuda::{CudaBackend, Gpu};
use lockstep_collective::local_group;
use lockstep_config::{
    Hardware, ServeArgs,
    args::{CollectiveBackendArg, DeviceArg, VerificationArg},
    resolve,
};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions, Registry};
use lockstep_fake_cuda::calls;
use lockstep_speculation::DrafterRegistry;
use lockstep_tp_worker::worker::{Folders, Worker, WorkerOptions};
use tempfile::TempDir;

use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

const REQUESTS: u32 = 3;
const PROMPT: u32 = 24;
/// Number of decode steps of a run.
const STEPS: u64 = 8;
const GRAPHS: &CStr = c"cuGraphLaunch";
const SUMS: &CStr = c"ncclAllReduce";
/// Calls of a rank's host in a step with a repeated pass, and their number.
const CALLS: [(&str, &[&CStr], u64); 6] = [
    ("launches of graphs", &[GRAPHS], 1),
    ("launches of kernels", &[c"cuLaunchKernelEx"], 0),
    ("copies to the device", &[c"cuMemcpyHtoDAsync_v2"], 1),
    ("copies from the device", &[c"cuMemcpyDtoHAsync_v2"], 1),
    ("waits", &[c"cuStreamSynchronize", c"cuEventSynchronize"], 1),
    (
        "collectives",
        &[
            SUMS,
            c"ncclAllGather",
            c"ncclBroadcast",
            c"ncclSend",
            c"ncclRecv",
        ],
        0,
    ),
];

/// An algorithm, with steps, branches and tokens of its drafts.
type Drafts = Option<(&'static str, [usize; 3])>;
/// A chain of every drafter, and trees of a drafter with a model and of one without.
const DRAFTS: [Drafts; 6] = [
    Some(("NGRAM", [3, 1, 4])),
    Some(("NGRAM", [3, 2, 6])),
    Some(("STANDALONE", [2, 1, 3])),
    Some(("EAGLE", [3, 1, 4])),
    Some(("EAGLE3", [3, 1, 4])),
    Some(("EAGLE3", [2, 2, 5])),
];

/// Drafts over many positions, so that attention is summed in parts, which take memory.
const LONG: Drafts = Some(("EAGLE", [2, 1, 3]));
const LONGER: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Recorded,
    Queued,
    Host,
}

/// Held by one test at a time, since a process keeps the folders of one update.
static TURN: Mutex<()> = Mutex::new(());

fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("tests/fixtures/architectures/llama")
}

/// Heads that remember their target's texts.
struct Heads([TempDir; 2]);

impl Heads {
    fn of(texts: &[Vec<u32>]) -> Self {
        Self([
            heads::eagle(&model(), texts),
            heads::eagle3(&model(), texts),
        ])
    }

    /// Returns the folder of the draft: a head, or the target itself.
    fn folder(&self, drafts: Drafts) -> Option<PathBuf> {
        match drafts?.0 {
            "STANDALONE" => Some(model()),
            "EAGLE" => Some(self.0[0].path().to_owned()),
            "EAGLE3" => Some(self.0[1].path().to_owned()),
            _ => None,
        }
    }
}

fn arguments(ranks: usize, drafts: Drafts, draft: Option<&Path>, way: Way) -> ServeArgs {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model());
    args.model.context_length = Some(if drafts == LONG { LONGER } else { 128 });
    args.parallel.device = Some(DeviceArg::Cuda);
    args.parallel.tp_size = Some(ranks);
    args.parallel.collective_backend = (ranks > 1).then_some(match way {
        Way::Host => CollectiveBackendArg::Host,
        Way::Recorded | Way::Queued => CollectiveBackendArg::Nccl,
    });
    args.graphs.disable_cuda_graph = way != Way::Recorded;
    args.memory.max_total_tokens = Some(1024);
    args.schedule.max_running_requests = Some(4);
    if let Some((name, [steps, branches, tokens])) = drafts {
        args.speculation.speculative_algorithm = Some(name.to_owned());
        args.speculation.speculative_num_steps = Some(steps);
        args.speculation.speculative_eagle_topk = Some(branches);
        args.speculation.speculative_num_draft_tokens = Some(tokens);
        args.speculation.speculative_adaptive = Some(false);
        args.speculation.speculative_draft_model_path = draft.map(Path::to_owned);
    }
    args
}

fn resolved(args: &ServeArgs) -> EngineConfig {
    let algorithms = Registry::builtin().algorithms();
    let resolved = resolve(args, &Hardware::detect(), &algorithms, &DeviceFootprint);
    resolved.unwrap().value.0
}

/// Opens a request with a prompt that repeats itself. Some texts are sampled.
fn open(slot: u32, reported: bool) -> SlotOpen {
    let prompt = (0..PROMPT).map(|at| 5 + (at + slot) % 6);
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

/// Returns the plan of step `step`, the `turn`-th step of a run. A run begins with prompts. The
/// second run reports the log-probabilities of the last request's tokens, which hosts choose.
fn plan(config: &EngineConfig, step: u64, turn: u64) -> StepPlan {
    let (first, again) = (turn == 0, step > 1);
    let pages = 96u32.div_ceil(config.kv.page_size as u32);
    let extend = |slot| SlotExtend {
        slot,
        prefill_len: if first { PROMPT } else { 0 },
        sample: true,
        new_pages: match first {
            true => (1 + slot * pages..1 + (slot + 1) * pages).collect(),
            false => Vec::new(),
        },
        ..SlotExtend::default()
    };
    let slots = || (0..REQUESTS).filter(|_| first);
    StepPlan {
        step,
        draft_steps: if first {
            0
        } else {
            config.speculation.num_steps as u32
        },
        parts: vec![PlanPart {
            closes: slots().filter(|_| again).collect(),
            opens: slots()
                .map(|slot| open(slot, again && slot == REQUESTS - 1))
                .collect(),
            extends: (0..REQUESTS).map(extend).collect(),
        }],
        ..StepPlan::default()
    }
}

/// Results of a rank. Only the lead has texts, by slot, and accepted drafts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Texts {
    texts: [Vec<u32>; REQUESTS as usize],
    accepted: usize,
    /// Bits of the log-probabilities that were asked for.
    bits: Vec<u32>,
}

impl Texts {
    /// Returns as many tokens of each text as steps bring at the least. A drafter that learnt
    /// from earlier texts may bring more.
    fn begin(&self) -> Vec<Vec<u32>> {
        let least = |text: &Vec<u32>| text.iter().take(STEPS as usize + 1).copied().collect();
        self.texts.iter().map(least).collect()
    }
}

/// Returns this thread's counts of [`CALLS`] so far; `None` on a real GPU.
fn asked() -> Option<[u64; CALLS.len()]> {
    calls(GRAPHS)?;
    Some(CALLS.map(|(_, names, _)| {
        let counts = names.iter().map(|name| calls(name).unwrap_or_default());
        counts.sum()
    }))
}

/// Runs the requests from step `step` on. If `counts`, each step must make exactly the calls of
/// [`CALLS`].
fn run(
    worker: &mut Worker<CudaBackend>,
    config: &EngineConfig,
    step: u64,
    way: Way,
    counts: bool,
) -> Texts {
    let mut found = Texts::default();
    for turn in 0..=STEPS {
        let before = asked();
        let result = worker.step(&plan(config, step + turn, turn)).unwrap();
        if let (Some(before), Some(now), 1..) = (before, asked(), turn) {
            let made: [u64; CALLS.len()] = std::array::from_fn(|at| now[at] - before[at]);
            let asks = way == Way::Queued && config.parallel.tp_size > 1;
            assert_eq!(made[0] > 0, way == Way::Recorded, "{made:?}");
            assert_eq!(made[5] > 0, asks, "{made:?}");
            for (made, (what, _, most)) in made.into_iter().zip(CALLS) {
                assert!(!counts || made == most, "{made} {what} of turn {turn}");
            }
        }
        for output in &result.outputs {
            found.texts[output.slot as usize].extend(&output.token_ids);
            found.accepted += output.token_ids.len() - 1;
            let likely = output.logprobs.iter().filter_map(|of| of.logprob);
            found.bits.extend(likely.map(f32::to_bits));
        }
    }
    found
}

/// Returns the results of the lead of `ranks` ranks: texts with the first weights, and
/// log-probabilities with new weights, which are the same.
fn texts(ranks: usize, drafts: Drafts, heads: Option<&Heads>, way: Way, seed: u64) -> Texts {
    verified(VerificationArg::Target, ranks, drafts, heads, (way, seed))
}

fn verified(
    how: VerificationArg,
    ranks: usize,
    drafts: Drafts,
    heads: Option<&Heads>,
    (way, seed): (Way, u64),
) -> Texts {
    let draft = heads.and_then(|heads| heads.folder(drafts));
    let mut args = arguments(ranks, drafts, draft.as_deref(), way);
    args.speculation.speculative_verification = drafts.map(|_| how);
    let config = Arc::new(resolved(&args));
    let models = draft.is_some();
    // All ranks of a process take the folders that were opened once. Heads lie elsewhere, and
    // stay.
    let own = draft.filter(|_| drafts.is_some_and(|(name, _)| name == "STANDALONE"));
    let folders = Folders::below(model().parent().unwrap(), &model(), own.as_deref()).unwrap();
    let start = |(rank, group)| {
        let (config, folders) = (config.clone(), folders.clone());
        thread::spawn(move || {
            let _order = lockstep_fake_cuda::order(seed + rank as u64);
            let options = DeviceOptions::new(&config).of_rank(rank, None);
            let gpu = CudaBackend::open(&options, Box::new(group)).unwrap();
            let options = WorkerOptions {
                drafters: &DrafterRegistry::builtin(),
                weight_cache: None,
                progress: &mut |_| {},
            };
            let mut worker = Worker::load(&config, rank, gpu, options).unwrap();
            // Only the lead has a draft model, and only the lead's host chooses tokens.
            let repeats = way == Way::Recorded;
            let repeats = repeats && how == VerificationArg::Target;
            let counts = repeats && !(rank == 0 && models);
            let mut first = run(&mut worker, &config, 1, way, counts);
            worker.reload(Some(&folders)).unwrap();
            let counts = repeats && rank > 0;
            let second = run(&mut worker, &config, 2 + STEPS, way, counts);
            assert_eq!(second.begin(), first.begin(), "{way:?} after new weights");
            first.bits = second.bits;
            first
        })
    };
    let group = local_group(ranks).into_iter().enumerate();
    let threads: Vec<_> = group.map(start).collect();
    let found = threads.into_iter().map(|rank| rank.join().unwrap());
    let mut found: Vec<_> = found.collect();
    let mut lead = found.remove(0);
    assert!(found.iter().all(|other| *other == Texts::default()));
    lead.bits.truncate(STEPS as usize + 1);
    assert_eq!(lead.bits.len(), STEPS as usize + 1);
    lead
}

const WAYS: [(Way, u64); 3] = [(Way::Recorded, 1), (Way::Queued, 20), (Way::Host, 300)];

/// Runs every drafter in one of the ways, which take turns.
#[test]
fn texts_do_not_show_which_way_data_goes_nor_what_drafts() {
    agree(|ranks, number| match ranks {
        2 => WAYS[number % 2..].iter().take(1),
        _ => WAYS[..].iter().take(number % 2),
    });
}

#[test]
#[ignore = "two minutes: every drafter in every way"]
fn texts_are_the_same_of_every_drafter_in_every_way() {
    agree(|_, _| WAYS.iter().take(WAYS.len()));
}

/// Compares texts of two and of four ranks with the texts of one GPU without drafts. Compares
/// log-probabilities with those of as many ranks without drafts, in every way for two ranks.
fn agree<'a, W: Iterator<Item = &'a (Way, u64)>>(ways: impl Fn(usize, usize) -> W) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = texts(1, None, None, Way::Recorded, 1);
    let heads = Heads::of(&alone.texts);
    let whole = |text: &Vec<u32>| text.len() == STEPS as usize + 1;
    assert!(alone.begin().iter().all(whole));
    for ranks in [2, 4] {
        // Real GPUs sum over four ranks in another order.
        if Gpu::count().unwrap() < ranks || ranks > 2 && !lockstep_fake_cuda::seed(1) {
            continue;
        }
        let mut bits = None;
        let plain = WAYS[..if ranks == 2 { 3 } else { 1 }].iter();
        let plain = plain.map(|way| (None, way));
        let drafts = DRAFTS.into_iter().enumerate();
        let drafts = drafts.flat_map(|(at, drafts)| ways(ranks, at).map(move |way| (drafts, way)));
        for (drafts, &(way, seed)) in plain.chain(drafts) {
            let found = texts(ranks, drafts, Some(&heads), way, seed);
            let what = format!("{ranks} ranks, {drafts:?}, {way:?}");
            assert_eq!(found.accepted > 0, drafts.is_some(), "{what}");
            assert_eq!(alone.begin(), found.begin(), "{what}");
            let bits = bits.get_or_insert_with(|| found.bits.clone());
            assert_eq!(*bits, found.bits, "{what}");
        }
    }
}

/// All ranks record anew if the lead's draft makes the target's passes void. Here the draft,
/// which only the lead has, uses the same working memory as the lead's part of the target,
/// since both have the same shape. The draft's passes need more, so the lead replaces the
/// memory that its passes were recorded with.
#[test]
fn a_draft_that_takes_more_of_what_the_target_has_recorded_does_so_on_all_ranks() {
    if Gpu::count().unwrap() < 2 {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = texts(1, None, None, Way::Recorded, 1);
    let heads = Heads([
        heads::eagle_of([2, 1], &model(), &alone.texts),
        heads::eagle3(&model(), &alone.texts),
    ]);
    let found = texts(2, LONG, Some(&heads), Way::Recorded, 1);
    assert!(found.accepted > 0);
    assert_eq!(alone.begin(), found.begin());
}

/// Ranks without drafts of their own know, too, which tokens a host chooses.
#[test]
fn sampled_drafts_are_verified_alike_in_every_way() {
    if Gpu::count().unwrap() < 2 {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = texts(1, None, None, Way::Recorded, 1);
    let heads = Heads::of(&alone.texts);
    let chain = DRAFTS[4];
    for (how, drafts) in [
        (VerificationArg::Rejection, chain),
        (VerificationArg::Rejection, DRAFTS[5]),
        (VerificationArg::Block, chain),
    ] {
        let ways = [WAYS[0], WAYS[2]];
        let [recorded, host] = ways.map(|way| verified(how, 2, drafts, Some(&heads), way));
        assert!(recorded.accepted > 0, "{how:?}, {drafts:?}");
        assert_eq!(recorded, host, "{how:?}, {drafts:?}");
    }
}

//! Several ranks on GPUs of their own. The leads draft on their devices, also for the other
//! ranks of their DP rank. Drafts and texts are as if the hosts had drafted. Started by cargo
//! on fake GPUs, which count calls.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "one_launch/heads.rs"]
mod heads;

use std::{
    ffi::CStr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockstep_adaptive::{AdaptiveConfig, Agreed, BatchSlot, Tier};
use lockstep_backend::Groups;
use lockstep_backend_cuda::CudaBackend;
use lockstep_collective::local_group;
use lockstep_config::{
    Hardware, ServeArgs,
    args::{CollectiveBackendArg, DeviceArg},
    resolve,
};
use lockstep_devices::{Device as _, DeviceFootprint, DeviceOptions, Registry};
use lockstep_fake_cuda::calls;
use lockstep_speculation::{DrafterRegistry, conformance::watch};
use lockstep_tp_worker::{
    conformance::Turns,
    worker::{Worker, WorkerOptions},
};
use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StageTimes, StepPlan},
};
use tempfile::TempDir;

const PROMPT: u32 = 24;
/// Most requests of a DP rank.
const SLOTS: usize = 2;
const STEPS: u64 = 12;
/// The step with which each request of a DP rank begins. A DP rank with the first load has less
/// to do.
const LOADS: [&[u64]; 2] = [&[3], &[1, 4]];
/// Depths of steps, in turn.
const DEPTHS: [u32; 9] = [1, 2, 2, 2, 2, 0, 0, 2, 1];

/// An algorithm, with steps, branches and tokens of its drafts.
type Drafts = (&'static str, [usize; 3]);

/// Numbers of ranks and of DP ranks.
type Split = (usize, usize);

/// The way in which drafts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The device drafts, in one graph.
    Recorded,
    /// The device drafts, without graphs.
    Queued,
    /// The host drafts, since some of the tokens are the host's to choose.
    Host,
}

/// The source of the depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depths {
    /// Plans ask for [`DEPTHS`].
    Planned,
    /// Ranks agree on a depth.
    Agreed,
}

/// Calls of a rank's host in a step with repeated passes, and their number. A lead that drafts
/// makes one more launch.
const CALLS: [(&str, &[&CStr], u64); 6] = [
    ("launches of graphs", &[c"cuGraphLaunch"], 1),
    ("launches of kernels", &[c"cuLaunchKernelEx"], 0),
    ("copies to the device", &[c"cuMemcpyHtoDAsync_v2"], 1),
    ("copies from the device", &[c"cuMemcpyDtoHAsync_v2"], 1),
    ("waits", &[c"cuStreamSynchronize", c"cuEventSynchronize"], 1),
    (
        "collectives",
        &[
            c"ncclAllReduce",
            c"ncclAllGather",
            c"ncclReduceScatter",
            c"ncclBroadcast",
            c"ncclSend",
            c"ncclRecv",
        ],
        0,
    ),
];

fn made() -> [u64; CALLS.len()] {
    let count = |name: &&CStr| calls(name).unwrap_or_default();
    CALLS.map(|(_, names, _)| names.iter().map(count).sum())
}

fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("tests/fixtures/architectures/llama")
}

/// Heads that remember their target's texts.
struct Heads([TempDir; 2]);

impl Heads {
    fn folder(&self, algorithm: &str) -> PathBuf {
        match algorithm {
            "EAGLE" => self.0[0].path().to_owned(),
            "EAGLE3" => self.0[1].path().to_owned(),
            _ => model(),
        }
    }
}

fn config(
    (tp_size, dp_size): Split,
    drafts: Option<(Drafts, &Heads)>,
    way: Way,
    depths: Depths,
) -> EngineConfig {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model());
    args.model.context_length = Some(128);
    args.parallel.device = Some(DeviceArg::Cuda);
    args.parallel.tp_size = Some(tp_size);
    args.parallel.dp_size = Some(dp_size);
    args.parallel.enable_dp_attention = dp_size > 1;
    args.parallel.collective_backend = Some(CollectiveBackendArg::Nccl);
    args.graphs.disable_cuda_graph = way == Way::Queued;
    args.memory.max_total_tokens = Some(1024);
    args.schedule.max_running_requests = Some(SLOTS * dp_size);
    if let Some(((algorithm, [steps, branches, tokens]), heads)) = drafts {
        args.speculation.speculative_algorithm = Some(algorithm.to_owned());
        args.speculation.speculative_draft_model_path = Some(heads.folder(algorithm));
        args.speculation.speculative_num_steps = Some(steps);
        args.speculation.speculative_eagle_topk = Some(branches);
        args.speculation.speculative_num_draft_tokens = Some(tokens);
        args.speculation.speculative_adaptive = Some(false);
    }
    let algorithms = Registry::builtin().algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &algorithms, &DeviceFootprint);
    let mut config = resolved.unwrap().value.0;
    if depths == Depths::Agreed {
        let speculation = &config.speculation;
        let depths: Vec<u32> = (0..=speculation.num_steps as u32).collect();
        let tier = |depth: &u32| Tier {
            depth: *depth,
            tokens: speculation.draft_tokens_at(*depth as usize) as u32,
        };
        let tiers = depths.iter().map(tier).collect();
        let slots = vec![BatchSlot::new(1, depths)];
        config.speculation.adaptive = Some(AdaptiveConfig::new("turns", 0, tiers, slots));
    }
    config
}

/// Opens the `number`-th request, with a prompt that repeats itself. Every second text is
/// sampled.
fn open(slot: usize, number: usize, reported: bool) -> SlotOpen {
    let prompt = (0..PROMPT).map(|at| 5 + (at + number as u32) % 6);
    let mut open = SlotOpen::new(slot as u32, prompt.collect());
    open.generation.sampling = match number % 2 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams {
            top_k: 3,
            temperature: 1.0,
            seed: number as u64,
            ..SamplingParams::default()
        },
    };
    open.generation.logprobs.output = reported;
    open
}

/// Returns the plan of a step. With `reports`, hosts choose tokens.
fn plan(config: &EngineConfig, step: u64, draft_steps: u32, reports: bool) -> StepPlan {
    let dp_size = config.parallel.dp_size;
    let pages = 96usize.div_ceil(config.kv.page_size) as u32;
    let part = |dp_rank: usize| {
        let mut part = PlanPart::default();
        // The last of several DP ranks has the larger load.
        let load = LOADS[LOADS.len() - 1 - (dp_size - 1 - dp_rank).min(1)];
        for (slot, begins) in load.iter().copied().enumerate() {
            let (first, at) = (step == begins, slot as u32);
            if first {
                part.opens.push(open(slot, dp_rank + slot, reports));
            }
            if step >= begins {
                part.extends.push(SlotExtend {
                    slot: at,
                    prefill_len: if first { PROMPT } else { 0 },
                    sample: true,
                    new_pages: match first {
                        true => (1 + at * pages..1 + (at + 1) * pages).collect(),
                        false => Vec::new(),
                    },
                    ..SlotExtend::default()
                });
            }
        }
        part
    };
    StepPlan {
        step,
        draft_steps,
        parts: (0..dp_size).map(part).collect(),
        ..StepPlan::default()
    }
}

/// Results of one rank.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Brought {
    /// Texts by slot; empty on ranks that do not lead.
    texts: [Vec<u32>; SLOTS],
    drafted: usize,
    accepted: usize,
    /// Digest of all drafts.
    drafts: u64,
}

/// Calls of one step with drafts at the depth of the step before, so that the drafter has
/// nothing to catch up with.
struct Asked {
    depth: u32,
    /// Number of rows of this rank.
    rows: usize,
    calls: [u64; CALLS.len()],
    times: StageTimes,
}

fn rank(config: &EngineConfig, rank: usize, groups: Groups, way: Way) -> (Brought, Vec<Asked>) {
    let (mut drafters, findings) = watch(&DrafterRegistry::builtin());
    drafters.add_policy(Arc::new(Turns::default()));
    let options = DeviceOptions::new(config);
    let backend = CudaBackend::open(&options.of_rank(rank, None), groups).unwrap();
    let options = WorkerOptions {
        drafters: &drafters,
        weight_cache: None,
        progress: &mut |_| {},
    };
    let mut worker = Worker::load(config, rank, backend, options).unwrap();
    let adaptive = config.speculation.adaptive.as_ref();
    let mut agreed = adaptive.map(|adaptive| Agreed::new(adaptive.initial_depth));
    let (mut brought, mut asked) = (Brought::default(), Vec::new());
    let mut before = 0;
    for step in 1..=STEPS {
        let most = config.speculation.num_steps as u32;
        let depth = match &mut agreed {
            Some(agreed) => {
                let depth = agreed.depth();
                agreed.begin();
                depth
            }
            None => DEPTHS[step as usize % DEPTHS.len()].min(most),
        };
        let plan = plan(config, step, depth, way == Way::Host);
        let calls = made();
        let result = worker.step(&plan).unwrap();
        let now = made();
        if plan.decodes(0).is_some() && depth == before && depth > 0 {
            asked.push(Asked {
                depth,
                rows: plan.parts[config.parallel.dp_rank(rank)].extends.len(),
                calls: std::array::from_fn(|at| now[at] - calls[at]),
                times: result.stages,
            });
        }
        before = depth;
        if let (Some(agreed), Some(depth)) = (&mut agreed, result.agreed_depth) {
            agreed.decide(step, depth);
        }
        for output in result.outputs {
            brought.drafted += output.draft_tokens as usize;
            brought.accepted += output.token_ids.len() - 1;
            brought.texts[output.slot as usize].extend(output.token_ids);
        }
    }
    brought.drafts = findings.digest();
    (brought, asked)
}

/// Runs all ranks.
fn run(config: &EngineConfig, way: Way) -> Vec<(Brought, Vec<Asked>)> {
    let members = local_group(config.parallel.tp_size).into_iter().enumerate();
    let start = |(at, member)| {
        let config = config.clone();
        thread::spawn(move || {
            let _order = lockstep_fake_cuda::order(1 + at as u64);
            let groups = Groups::form(Box::new(member), config.parallel.dp_size).unwrap();
            rank(&config, at, groups, way)
        })
    };
    let ranks: Vec<_> = members.map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Compares steps with drafts made by the host, level by level, with steps with drafts made by
/// the device. Drafts, texts and counts must be equal.
fn compare(split: Split, drafts: Drafts, heads: &Heads, depths: Depths, ways: &[Way]) {
    let what = |way| format!("{drafts:?} on {split:?}, {depths:?}, {way:?}");
    let of_host = config(split, Some((drafts, heads)), Way::Host, depths);
    let expected = run(&of_host, Way::Host);
    let sum = |of: fn(&Brought) -> usize| expected.iter().map(|(rank, _)| of(rank)).sum::<usize>();
    let (drafted, accepted) = (sum(|rank| rank.drafted), sum(|rank| rank.accepted));
    assert!(
        accepted > 0 && drafted > accepted,
        "{}: {accepted} of {drafted}",
        what(Way::Host)
    );
    for &way in ways {
        let config = config(split, Some((drafts, heads)), way, depths);
        for (rank, (found, expected)) in run(&config, way).iter().zip(&expected).enumerate() {
            assert_eq!(found.0, expected.0, "{}, rank {rank}", what(way));
            let leads = rank.is_multiple_of(config.parallel.attn_tp_size());
            let counted = found.1.iter().filter(|asked| asked.rows > 0).count();
            assert!(counted > 0 || depths == Depths::Agreed, "{}", what(way));
            for asked in found.1.iter().filter(|_| way == Way::Recorded) {
                check_times(asked, leads);
                let Asked {
                    depth, rows, calls, ..
                } = asked;
                let drafts = leads && *rows > 0;
                for (made, (name, _, most)) in calls.iter().zip(CALLS) {
                    let most = match name {
                        "launches of graphs" => most + u64::from(drafts),
                        _ => most,
                    };
                    // A rank without rows need not make every call.
                    let right = *made == most || *rows == 0 && *made < most;
                    let what = what(way);
                    assert!(right, "{what}, rank {rank} at {depth}: {made} {name}");
                }
            }
        }
    }
}

/// Checks the times of a step. The lead, whose device drafts, reports the time of drafting by
/// the device's clock. The other ranks of its DP rank wait for the drafts in their passes, and
/// report no times.
fn check_times(asked: &Asked, leads: bool) {
    let Asked { rows, times, .. } = asked;
    match leads {
        _ if *rows == 0 || calls(c"cuInit").is_none() => {}
        true => assert!(times.draft_us >= 1_000, "{times:?}"),
        false => assert_eq!(*times, StageTimes::default()),
    }
}

fn heads() -> Heads {
    let config = config((2, 2), None, Way::Recorded, Depths::Planned);
    let ranks = run(&config, Way::Recorded);
    let texts = ranks.into_iter().flat_map(|(rank, _)| rank.texts);
    let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    Heads([
        heads::eagle(&model(), &texts),
        heads::eagle3(&model(), &texts),
    ])
}

/// Runs chains and trees of all algorithms that draft on devices, with DP ranks that idle for a
/// while.
#[test]
fn leads_draft_on_their_devices_what_their_hosts_would() {
    if calls(c"cuInit").is_none() {
        return; // There may be one GPU, which does not count.
    }
    let heads = heads();
    let (planned, agreed) = (Depths::Planned, Depths::Agreed);
    let both: &[Way] = &[Way::Recorded, Way::Queued];
    for (split, drafts, depths, ways) in [
        ((2, 2), ("STANDALONE", [2, 1, 3]), planned, both),
        ((2, 2), ("EAGLE", [2, 2, 5]), planned, &both[..1]),
        ((2, 2), ("EAGLE3", [2, 1, 3]), agreed, &both[..1]),
        // In these splits other ranks verify the drafts that the lead's device makes.
        ((2, 1), ("STANDALONE", [2, 2, 5]), planned, both),
        ((2, 1), ("EAGLE3", [2, 1, 3]), agreed, &both[..1]),
        ((4, 2), ("EAGLE", [2, 1, 3]), planned, &both[..1]),
        ((4, 1), ("EAGLE", [2, 2, 5]), planned, &both[..1]),
    ] {
        compare(split, drafts, &heads, depths, ways);
    }
}

#[test]
#[ignore = "four minutes: chains and trees of every drafter, at depths of both kinds, on every split"]
fn drafts_for_other_ranks_are_the_hosts_in_every_way() {
    if calls(c"cuInit").is_none() {
        return;
    }
    let heads = heads();
    for split in [(2, 1), (4, 1), (4, 2)] {
        for drafter in ["STANDALONE", "EAGLE", "EAGLE3"] {
            for shape in [[2, 1, 3], [2, 2, 5]] {
                for depths in [Depths::Planned, Depths::Agreed] {
                    let ways = &[Way::Recorded, Way::Queued];
                    compare(split, (drafter, shape), &heads, depths, ways);
                }
            }
        }
    }
}

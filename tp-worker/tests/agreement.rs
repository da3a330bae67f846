//! The collectives of a step, and the agreement on the depth. Agreeing adds no collective. Over
//! TCP it ends ranks that decide differently. The exchanges of a step are known before it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Row, Tier};
use lockstep_backend::{Axis, Groups, WorldRows};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::{
    AbortHandle, Collective, CollectiveError, Owners, Parts, Single, Tcp, local_group,
};
use lockstep_config::{Hardware, ServeArgs, resolve};
use lockstep_devices::{Device, DeviceFootprint, DeviceOptions, Registry};
use lockstep_model::{CollectiveKind, Exit, ForwardLimits, Schedule, Shard, Topology};
use lockstep_speculation::DrafterRegistry;
use lockstep_tp_worker::{
    conformance::Turns,
    worker::{DecodeStep, StepExchange, Worker, WorkerError, WorkerOptions},
};
use lockstep_types::{
    EngineConfig,
    sampling::SamplingParams,
    step::{PlanPart, SlotExtend, SlotOpen, StepPlan},
};

fn model(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let root = above.find(|folder| folder.join("models").is_dir());
    let root = root.expect("the models are above this crate");
    root.join("models").join(name)
}

const DEPTH: u32 = 3;

/// The algorithms, with their drafts and branches.
const ALGORITHMS: [(&str, Option<&str>, usize); 4] = [
    ("EAGLE3", Some("lockstep-demo-7m-eagle3"), 4),
    ("EAGLE", Some("lockstep-demo-7m-eagle"), 1),
    ("STANDALONE", Some("lockstep-demo-1m-draft"), 1),
    ("NGRAM", None, 1),
];

fn config((algorithm, draft, topk): (&str, Option<&str>, usize), tp: usize) -> EngineConfig {
    let mut args = ServeArgs::default();
    args.model.model_path = Some(model("lockstep-demo-7m"));
    args.model.context_length = Some(128);
    args.parallel.tp_size = Some(tp);
    args.parallel.threads_per_rank = Some(1);
    args.memory.max_total_tokens = Some(1024);
    args.memory.page_size = Some(16);
    args.schedule.max_running_requests = Some(2);
    let given = &mut args.speculation;
    given.speculative_algorithm = Some(algorithm.to_owned());
    given.speculative_draft_model_path = draft.map(model);
    given.speculative_num_steps = Some(DEPTH as usize);
    given.speculative_eagle_topk = Some(topk);
    given.speculative_num_draft_tokens = Some(if topk == 1 { 4 } else { 9 });
    let known = Registry::builtin().algorithms();
    let resolved = resolve(&args, &Hardware::detect(), &known, &DeviceFootprint);
    resolved.unwrap().value.0
}

/// Returns the configuration with depths on which ranks agree by [`Turns`].
fn adaptive(config: &EngineConfig) -> EngineConfig {
    let tier = |depth: u32| Tier {
        depth,
        tokens: config.speculation.draft_tokens_at(depth as usize) as u32,
    };
    let tiers = (0..=DEPTH).map(tier).collect();
    let slots = vec![BatchSlot::new(1, (0..=DEPTH).collect())];
    let mut config = config.clone();
    config.speculation.adaptive = Some(AdaptiveConfig::new("turns", DEPTH, tiers, slots));
    config
}

fn load(
    config: &EngineConfig,
    rank: usize,
    collective: Box<dyn Collective>,
    policy: Turns,
) -> Worker<CpuBackend> {
    let mut drafters = DrafterRegistry::builtin();
    drafters.add_policy(Arc::new(policy));
    let groups = Groups::form(collective, config.parallel.dp_size).unwrap();
    let backend = CpuBackend::open(&DeviceOptions::new(config), groups).unwrap();
    let options = WorkerOptions {
        drafters: &drafters,
        weight_cache: None,
        progress: &mut |_| {},
    };
    Worker::load(config, rank, backend, options).unwrap()
}

/// Returns the plan of a step: two prompts on each DP rank in the first, then decode rows.
fn plan(step: u64, draft_steps: u32, dp_size: usize) -> StepPlan {
    let mut part = PlanPart::default();
    for slot in 0..2 {
        let first = step == 1;
        let prompt: Vec<u32> = (0..20).map(|at| 10 + at % 5 + slot).collect();
        part.extends.push(SlotExtend {
            slot,
            prefill_len: if first { 20 } else { 0 },
            sample: true,
            new_pages: match first {
                true => (1 + 8 * slot..9 + 8 * slot).collect(),
                false => Vec::new(),
            },
            ..SlotExtend::default()
        });
        if first {
            part.opens.push(SlotOpen {
                generation: SamplingParams::greedy().into(),
                ..SlotOpen::new(slot, prompt)
            });
        }
    }
    StepPlan {
        step,
        draft_steps,
        parts: vec![part; dp_size],
        ..StepPlan::default()
    }
}

/// Number of steps that a rank runs.
const STEPS: u64 = 14;

/// Depths of [`STEPS`] steps, and the operations of each step on rank 0.
type Run = (Vec<u32>, Vec<Vec<String>>);

/// Runs all ranks at the depths that they agree on, or at the depths of `fixed`.
fn run(config: &EngineConfig, tp: usize, fixed: Option<&[u32]>) -> Run {
    let groups: Vec<Box<dyn Collective>> = match tp {
        1 => vec![Box::new(Single::new())],
        _ => local_group(tp)
            .into_iter()
            .map(|member| Box::new(member) as _)
            .collect(),
    };
    let mut runs: Vec<Run> = thread::scope(|scope| {
        let rank = |(rank, inner)| {
            scope.spawn(move || {
                let log = Arc::<Mutex<Vec<String>>>::default();
                let counted = Counted {
                    inner,
                    log: log.clone(),
                };
                let mut worker = load(config, rank, Box::new(counted), Turns::default());
                log.lock().unwrap().clear();
                // The depths agreed in the last step and in the one before.
                let mut agreed = [DEPTH; 2];
                let (mut depths, mut operations) = (Vec::new(), Vec::new());
                for step in 1..=STEPS {
                    let depth = fixed.map_or(agreed[0], |fixed| fixed[step as usize - 1]);
                    let result = worker
                        .step(&plan(step, depth, config.parallel.dp_size))
                        .unwrap();
                    assert_eq!(result.agreed_depth.is_some(), fixed.is_none());
                    agreed = [agreed[1], result.agreed_depth.unwrap_or_default()];
                    depths.push(depth);
                    operations.push(std::mem::take(&mut *log.lock().unwrap()));
                }
                (depths, operations)
            })
        };
        let ranks: Vec<_> = groups.into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    runs.swap_remove(0)
}

/// Every step has the same operations in the same order and of the same length.
#[test]
fn agreeing_adds_no_collective_to_any_step() {
    for algorithm in ALGORITHMS {
        for tp in [1, 2] {
            let fixed = config(algorithm, tp);
            let (depths, with) = run(&adaptive(&fixed), tp, None);
            let (_, without) = run(&fixed, tp, Some(&depths));
            assert_eq!(with, without, "{algorithm:?} on {tp} ranks");
            assert!(depths.windows(2).filter(|pair| pair[0] != pair[1]).count() > 5);
            assert!(tp == 1 || with.iter().all(|step| step.len() > 10));
        }
    }
}

/// Checks every operation of a decode step with its length, on rank 0. Two requests decode on
/// each DP rank, and each has three drafts that are all verified.
#[test]
fn the_exchanges_of_a_step_are_known_before_it() {
    let [.., standalone, _] = ALGORITHMS;
    for (tp, dp) in [(2, 1), (2, 2), (4, 2)] {
        let mut config = config(standalone, tp);
        config.parallel.dp_size = dp;
        config.schedule.max_running_requests = 2 * dp;
        let rows = vec![2 * (1 + DEPTH as usize); dp];
        let rows = WorldRows {
            tokens: rows.clone(),
            wanted: rows,
        };
        let (model, topology) = (&config.model, Topology::new(0, tp, dp));
        let block_rows = ForwardLimits::block_rows(model.vocab_size);
        let schedule = Schedule::new(model, topology, Axis::World, Exit::Logits, block_rows);
        let step = DecodeStep {
            rows: &rows,
            drafts: DEPTH as usize,
        };
        let vocab = Shard::new(model, topology).unwrap().vocab.len();
        let known = |exchange: &StepExchange| match *exchange {
            StepExchange::Drafts { words } | StepExchange::Outcomes { words } => {
                format!("broadcast {words}")
            }
            StepExchange::Opening => "barrier 0".to_owned(),
            StepExchange::Pass { step, rows, .. } => match step.kind {
                CollectiveKind::AllReduce => format!("sum_parts {}", rows * step.width),
                CollectiveKind::AllGather => format!("all_gather {}", rows * step.width),
                CollectiveKind::ReduceScatter => {
                    format!("reduce_scatter_parts {}", rows * step.width)
                }
                CollectiveKind::Gather => format!("gather_parts {}", rows * vocab),
            },
        };
        let known: Vec<_> = StepExchange::of_step(&schedule, topology, step)
            .iter()
            .map(known)
            .collect();
        let (_, found) = run(&config, tp, Some(&[DEPTH; STEPS as usize]));
        let found: Vec<_> = found[1..]
            .iter()
            .map(|step| {
                let sum = |operation: &String| operation.replace("all_reduce_sum", "sum_parts");
                step.iter().map(sum).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(found[0], known, "{tp} ranks, {dp} DP ranks");
        assert!(found.iter().all(|step| *step == known));
    }
}

/// Over TCP, a rank that decides differently in one step is found by the rows of the next step,
/// on both ranks. That is before the step that the decision was for.
#[test]
fn a_rank_that_decides_differently_ends_the_run_within_a_step() {
    const ASTRAY: u64 = 6;
    let config = &adaptive(&config(ALGORITHMS[1], 2));
    let ends: Vec<(u64, WorkerError)> = thread::scope(|scope| {
        let rank = |(rank, member): (usize, Tcp)| {
            scope.spawn(move || {
                let astray = (rank == 1).then_some(ASTRAY);
                let mut worker = load(config, rank, Box::new(member), Turns { astray });
                let mut agreed = [DEPTH; 2];
                let end = (1..).find_map(|step| {
                    // Depth 0 is never more than was agreed, on either rank.
                    let depth = if step < ASTRAY { agreed[0] } else { 0 };
                    match worker.step(&plan(step, depth, 1)) {
                        Ok(result) => agreed = [agreed[1], result.agreed_depth.unwrap()],
                        Err(error) => return Some((step, error)),
                    }
                    None
                });
                end.unwrap()
            })
        };
        let ranks: Vec<_> = tcp_group().into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut rows: Vec<[Row; 2]> = Vec::new();
    for (own, (step, error)) in ends.iter().enumerate() {
        assert_eq!(*step, ASTRAY + 1, "rank {own}: {error}");
        let WorkerError::RowsDiffer {
            rank,
            ours,
            peer,
            theirs,
        } = error
        else {
            panic!("rank {own}: {error}");
        };
        assert_eq!((*rank, *peer), (own, 1 - own));
        assert_eq!((ours.step, theirs.step), (ASTRAY + 1, ASTRAY + 1));
        assert_ne!(ours.digest, theirs.digest);
        for row in [ours, theirs] {
            assert!(error.to_string().contains(&row.to_string()), "{error}");
        }
        rows.push([**ours, **theirs]);
    }
    rows[1].reverse();
    assert_eq!(rows[0], rows[1], "both have seen both rows");
}

fn tcp_group() -> Vec<Tcp> {
    let handles: Vec<_> = (0..2).map(|_| Tcp::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = handles.iter().map(|handle| handle.address()).collect();
    let addresses = &addresses;
    thread::scope(|scope| {
        let join = |(rank, handle): (usize, lockstep_collective::TcpListenerHandle)| {
            scope.spawn(move || handle.connect(rank, addresses, "agreement", b"secret"))
        };
        let ranks: Vec<_> = handles.into_iter().enumerate().map(join).collect();
        let joined = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap());
        joined.collect()
    })
}

/// Writes down the collectives that a rank runs.
struct Counted {
    inner: Box<dyn Collective>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Counted {
    fn note(&self, operation: &str, length: usize) {
        self.log
            .lock()
            .unwrap()
            .push(format!("{operation} {length}"));
    }
}

impl Collective for Counted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn is_crowded(&self) -> bool {
        self.inner.is_crowded()
    }
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.note("all_reduce_sum", data.len());
        self.inner.all_reduce_sum(data)
    }
    fn sum_capacity(&self) -> usize {
        self.inner.sum_capacity()
    }
    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError> {
        self.inner.sum_buffer(length)
    }
    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError> {
        self.note("sum_parts", length);
        self.inner.sum_parts(length)
    }
    fn reduce_scatter_sum(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.note("reduce_scatter_sum", data.len());
        self.inner.reduce_scatter_sum(data, ranges, own)
    }
    fn reduce_scatter_parts(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Parts<'_>, CollectiveError> {
        self.note("reduce_scatter_parts", length);
        self.inner.reduce_scatter_parts(length, ranges)
    }
    fn all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.note("all_gather", all.len());
        self.inner.all_gather(own, counts, all)
    }
    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError> {
        self.note("exchange", all.len());
        self.inner.exchange(words, all)
    }
    fn agree(&mut self, words: &[u32]) -> Result<(), CollectiveError> {
        self.note("agree", words.len());
        self.inner.agree(words)
    }
    fn gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError> {
        self.note("gather", send.len());
        self.inner.gather(send, owners, recv)
    }
    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        owners: Owners<'_>,
    ) -> Result<Parts<'a>, CollectiveError> {
        self.note("gather_parts", send.len());
        self.inner.gather_parts(send, owners)
    }
    fn parts_capacity(&self) -> usize {
        self.inner.parts_capacity()
    }
    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError> {
        self.note("broadcast", data.len());
        self.inner.broadcast(root, data)
    }
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.note("barrier", 0);
        self.inner.barrier()
    }
    fn attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError> {
        self.inner.attach(shared, words)
    }
    fn attached(&self, all: &mut [u32]) -> bool {
        self.inner.attached(all)
    }
    fn split(&mut self, color: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        self.note("split", 0);
        let inner = self.inner.split(color)?;
        let log = match inner.size() {
            // Nothing is exchanged in a group of one rank.
            1 => Arc::default(),
            _ => self.log.clone(),
        };
        Ok(Box::new(Self { inner, log }))
    }
    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }
}

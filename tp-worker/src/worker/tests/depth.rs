//! Ranks agree on the depth, refuse depths that were not agreed, and name each other when they
//! differ.

use std::sync::{Arc, Mutex};

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Digest, Moment, Policies, Policy, PolicyFactory, Seen, Tier,
};
use lockstep_backend::{Backend, Groups};
use lockstep_backend_cpu::CpuBackend;
use lockstep_collective::{Collective, local_group};
use lockstep_devices::Device as _;
use lockstep_devices::DeviceOptions;
use lockstep_model::LoadPhase;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::{
    Dtype, EngineConfig,
    step::{PlanPart, StepPlan, StepResult},
};

use super::{
    counting::{Counting, Counts},
    speculation::speculating,
    support::{Request, config, cpu, load_alone, open, row},
};
use crate::worker::{
    PlanError, Worker, WorkerError, WorkerOptions,
    local::{GroupOptions, LocalGroup},
};

/// Goes through depths in turn. With `astray`, one policy of a group decides wrongly once.
#[derive(Debug, Clone)]
struct Turns {
    depths: Vec<u32>,
    reads_costs: bool,
    /// The step in which one rank decides wrongly.
    astray: Option<u64>,
    /// Number of policies built. Only the first of a group's policies goes astray.
    built: Arc<std::sync::atomic::AtomicUsize>,
}

#[derive(Debug)]
struct Turn {
    depths: Vec<u32>,
    astray: Option<u64>,
}

impl PolicyFactory for Turns {
    fn name(&self) -> &str {
        "turns"
    }

    fn summary(&self) -> &str {
        "one depth after the other"
    }

    fn reads_costs(&self) -> bool {
        self.reads_costs
    }

    fn build(&self, _config: &AdaptiveConfig) -> Box<dyn Policy> {
        let first = self.built.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        Box::new(Turn {
            depths: self.depths.clone(),
            astray: self.astray.filter(|_| first),
        })
    }
}

impl Policy for Turn {
    fn decide(&mut self, moment: &Moment<'_>) -> u32 {
        let depth = self.depths[moment.step as usize % self.depths.len()];
        match self.astray == Some(moment.step) {
            true => depth + 1,
            false => depth,
        }
    }

    fn digest(&self, _digest: &mut Digest) {}
}

/// Returns a configuration of EAGLE3 chains up to 3 deep, with a depth that takes turns.
fn adaptive(tp_size: usize) -> EngineConfig {
    let mut config = speculating(config(tp_size, 16, Dtype::Float32), "EAGLE3", [3, 1, 4]);
    config.schedule.max_running_requests = 4;
    let tier = |depth| Tier {
        depth,
        tokens: depth + 1,
    };
    let tiers = (0..4).map(tier).collect();
    let slots = vec![BatchSlot::new(1, vec![0, 1, 2, 3])];
    config.speculation.adaptive = Some(AdaptiveConfig::new("turns", 1, tiers, slots));
    config
}

fn turns(depths: &[u32]) -> Turns {
    Turns {
        depths: depths.to_vec(),
        reads_costs: false,
        astray: None,
        built: Arc::default(),
    }
}

fn drafters<B: Backend + 'static>(policy: Turns) -> DrafterRegistry<B> {
    let mut drafters = DrafterRegistry::builtin();
    drafters.add_policy(Arc::new(policy));
    drafters
}

fn start(config: &EngineConfig, drafters: &DrafterRegistry<CpuBackend>) -> LocalGroup {
    LocalGroup::start_on_device(config, &GroupOptions::new(drafters)).unwrap()
}

/// Returns plans for a prompt on slot 0, then for decode steps at `depths`.
fn plans(depths: &[u32]) -> Vec<StepPlan> {
    let prompt: Vec<u32> = (10..26).collect();
    let first = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            opens: vec![open(0, &Request::greedy(&prompt, 64))],
            extends: vec![row(0, 16, true, &[1, 2, 3, 4, 5])],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    let decodes = (2..).zip(depths).map(|(step, depth)| StepPlan {
        step,
        draft_steps: *depth,
        parts: vec![PlanPart {
            extends: vec![row(0, 0, true, &[])],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    });
    std::iter::once(first).chain(decodes).collect()
}

#[test]
fn what_was_decided_holds_two_steps_later_and_no_more_is_drafted() {
    for tp_size in [1, 2] {
        // In step `s` the depth `depths[s % 4]` is decided for step `s + 2`.
        let group = start(&adaptive(tp_size), &drafters(turns(&[2, 3, 0, 1])));
        let depths = [1, 3, 0, 1, 2, 3];
        let mut results = plans(&depths).into_iter().map(|plan| group.step(plan));
        for expected in [3, 0, 1, 2, 3, 0, 1] {
            let result: StepResult = results.next().unwrap().unwrap();
            assert_eq!(result.agreed_depth, Some(expected), "step {}", result.step);
        }
        let group = start(&adaptive(tp_size), &drafters(turns(&[2, 3, 0, 1])));
        let mut results = plans(&[1, 3, 1]).into_iter().map(|plan| group.step(plan));
        let refused = results.find_map(Result::err).unwrap();
        let WorkerError::Plan { step: 4, reason } = refused else {
            panic!("{refused}");
        };
        assert_eq!(
            reason,
            PlanError::TooDeep {
                asked: 1,
                agreed: 0
            }
        );
    }
}

#[test]
fn a_range_in_the_plan_binds_the_decision() {
    let group = start(&adaptive(2), &drafters(turns(&[0, 3])));
    let agreed = [(0, 9), (2, 2), (0, 1), (1, 9)].into_iter().zip(1..);
    let mut plans = plans(&[0, 0, 0]);
    let found = agreed.map(|((least, most), step)| {
        let mut plan = plans.remove(0);
        assert_eq!(plan.step, step);
        plan.depth_range = lockstep_adaptive::DepthRange { least, most };
        group.step(plan).unwrap().agreed_depth
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found, [Some(3), Some(2), Some(1), Some(1)]);
}

/// A rank that decides differently is found in the next step, before anything of that step is
/// committed. The error shows both ranks' rows.
#[test]
fn ranks_that_decide_differently_name_each_other_in_the_next_step() {
    let policy = Turns {
        astray: Some(3),
        ..turns(&[2])
    };
    let group = start(&adaptive(2), &drafters(policy));
    let mut results = plans(&[1, 2, 2]).into_iter().map(|plan| group.step(plan));
    for _ in 0..3 {
        assert!(results.next().unwrap().is_ok());
    }
    let error = results.next().unwrap().unwrap_err();
    let WorkerError::RowsDiffer { ours, theirs, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((ours.step, theirs.step), (4, 4));
    assert_ne!(ours.digest, theirs.digest);
    for part in ["rank 0", "rank 1", "step 4", "diverged"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// If data has a way of its own, rows travel before it: ranks that differ would wait for each
/// other's data for ever.
#[test]
fn rows_travel_before_data_that_does_not_take_them_along() {
    let config = adaptive(2);
    let policy = Turns {
        astray: Some(3),
        ..turns(&[2])
    };
    let hosts = local_group(2).into_iter().map(Some);
    let hosts: Mutex<Vec<_>> = Mutex::new(hosts.collect());
    let counts: [Arc<Mutex<Counts>>; 2] = Default::default();
    let (own, watched) = (config.clone(), counts.clone());
    let open = move |rank: usize, data| {
        let host = hosts.lock().unwrap()[rank].take();
        Ok(Counting {
            device: cpu(&own, data),
            counts: watched[rank].clone(),
            vocab: 0,
            control: host.map(|host| Box::new(host) as Box<dyn Collective>),
        })
    };
    let drafters = drafters(policy);
    let group = LocalGroup::start_on(&config, &GroupOptions::new(&drafters), open).unwrap();
    let ran = |name: &str| {
        let mut counts = counts.each_ref().map(|counts| counts.lock().unwrap());
        let found = counts.each_ref().map(|counts| counts.contains_key(name));
        counts.iter_mut().for_each(|counts| counts.clear());
        found
    };
    // Without drafts, nothing before the pass carries the rows.
    let mut plans = plans(&[1, 0, 0]).into_iter();
    for plan in plans.by_ref().take(3) {
        assert!(group.step(plan).unwrap().agreed_depth.is_some());
        assert_eq!(ran("stage"), [true; 2]);
    }
    let error = group.step(plans.next().unwrap()).unwrap_err();
    assert!(matches!(error, WorkerError::RowsDiffer { .. }), "{error}");
    drop(group);
    assert_eq!(ran("stage"), [false; 2]);
}

/// Measuring before the first plan leaves no trace: slots, pages and texts are as if nothing
/// had run.
#[test]
fn steps_measured_before_serving_leave_no_trace() {
    let fixed = EngineConfig {
        speculation: lockstep_types::SpeculationConfig {
            adaptive: None,
            ..adaptive(1).speculation
        },
        ..adaptive(1)
    };
    let depths = [1, 1, 1, 1];
    let mut plain = load_alone(&fixed).unwrap();
    let config = adaptive(1);
    let policy = Turns {
        reads_costs: true,
        ..turns(&[1])
    };
    let mut timed = Vec::new();
    let options = WorkerOptions {
        drafters: &drafters(policy),
        weight_cache: None,
        progress: &mut |at| {
            if at.phase == LoadPhase::Timing {
                timed.push((at.done, at.total));
            }
        },
    };
    let backend = CpuBackend::open(
        &DeviceOptions::new(&config),
        Box::new(lockstep_collective::Single::new()),
    );
    let mut measured = Worker::load(&config, 0, backend.unwrap(), options).unwrap();
    for plan in plans(&depths) {
        let (plain, measured) = (plain.step(&plan).unwrap(), measured.step(&plan).unwrap());
        assert_eq!(plain.outputs, measured.outputs);
        assert_eq!(plain.digests, measured.digests);
    }
    assert!(timed.is_sorted_by(|a, b| a.0 < b.0));
    assert!(timed.last().is_some_and(|(done, total)| done == total));
}

/// Measurements decide over depths, so all ranks know the same. This includes drafts that only
/// one rank has verified.
#[test]
fn ranks_know_the_same_measurements() {
    for dp_size in [1, 2] {
        let mut config = adaptive(2);
        config.parallel.dp_size = dp_size;
        config.speculation.adaptive = None;
        let of_ranks = measured(&config);
        assert!(of_ranks[0].iter().any(|seen| seen.drafts_accepted() > 0));
        assert_eq!(of_ranks[0], of_ranks[1]);
        // Costs are those of a batch on one DP rank, however many DP ranks have one.
        let batches = of_ranks[0].iter().map(|seen| seen.decodes);
        assert_eq!(batches.min(), Some(1), "{dp_size} DP ranks");
    }
}

/// Returns the measurements of each of two ranks.
fn measured(config: &EngineConfig) -> Vec<Vec<Seen>> {
    std::thread::scope(|scope| {
        let measure = |(rank, group): (usize, lockstep_collective::SharedMemory)| {
            scope.spawn(move || {
                let drafters = drafters(turns(&[1]));
                let options = WorkerOptions {
                    drafters: &drafters,
                    weight_cache: None,
                    progress: &mut |_| {},
                };
                let groups = Groups::form(Box::new(group), config.parallel.dp_size);
                let backend = CpuBackend::open(&DeviceOptions::new(config), groups.unwrap());
                let worker = Worker::load(config, rank, backend.unwrap(), options);
                worker.unwrap().profile(&mut |_| {}).unwrap()
            })
        };
        let groups = lockstep_collective::local_group(2).into_iter();
        let ranks: Vec<_> = groups.enumerate().map(measure).collect();
        let measured = ranks.into_iter().map(|rank| rank.join().unwrap());
        measured.collect()
    })
}

/// The error for an unknown policy names all known ones.
#[test]
fn a_policy_that_nobody_knows_is_an_error() {
    let mut config = adaptive(1);
    if let Some(adaptive) = &mut config.speculation.adaptive {
        adaptive.policy = "nobody's".to_owned();
    }
    let error = load_alone(&config).err().unwrap().to_string();
    for known in Policies::builtin().iter() {
        assert!(error.contains(known.name()), "{error}");
    }
}

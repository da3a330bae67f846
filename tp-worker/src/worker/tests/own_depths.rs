//! Requests that draft less deep than their group agreed.

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Tier};
use lockstep_types::{
    Dtype, EngineConfig, SpeculationConfig, Verification,
    sampling::SamplingParams,
    step::{PlanPart, SlotOpen, StepPlan},
};

use super::{
    speculation::{goldens, speculating},
    support::{Request, config, open, row},
};
use crate::worker::local::{LocalGroup, LocalOptions};

const DEPTH: u32 = 3;
const STEPS: usize = 60;
const KNOWN: usize = 17;

/// Returns a configuration whose depth may adapt. It is [`DEPTH`] unless plans ask for less.
fn adaptive(algorithm: &str, shape: [usize; 3], tp_size: usize) -> EngineConfig {
    let mut config = speculating(config(tp_size, 16, Dtype::Float32), algorithm, shape);
    let speculation = &mut config.speculation;
    let tier = |depth| Tier {
        depth,
        tokens: speculation.draft_tokens_at(depth as usize) as u32,
    };
    let tiers = (0..=DEPTH).map(tier).collect();
    let slots = vec![BatchSlot::new(1, (0..=DEPTH).collect())];
    speculation.adaptive = Some(AdaptiveConfig::new("static", DEPTH, tiers, slots));
    speculation.pause_window = 64;
    config
}

/// Opens a request that writes a table. Drafters know most of its first [`KNOWN`] steps.
fn easy(slot: u32) -> SlotOpen {
    let table = &goldens()[11];
    open(slot, &Request::greedy(&table.prompt_ids, 200))
}

/// Opens a request whose next token is nearly random, so no drafter can know it.
fn hard(slot: u32) -> SlotOpen {
    let mut request = Request::greedy(&[900, 17, 2400, 3, 77], 200);
    request.sampling = SamplingParams {
        temperature: 100.0,
        seed: 7,
        ignore_eos: true,
        ..request.sampling
    };
    open(slot, &request)
}

/// Depth and tokens of every request, by step.
type Rounds = Vec<Vec<(u32, Vec<u32>)>>;

/// Runs the requests together. `depth` gives the depth of each step.
fn run(config: &EngineConfig, opens: &[SlotOpen], depth: impl Fn(usize) -> u32) -> Rounds {
    let group = LocalGroup::start(config, &LocalOptions::default()).unwrap();
    let mut plan = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            opens: opens.to_vec(),
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    for open in opens {
        let pages: Vec<u32> = (20 * open.slot + 1..=20 * open.slot + 20).collect();
        let prompt = open.token_ids.len() as u32;
        plan.parts[0]
            .extends
            .push(row(open.slot, prompt, true, &pages));
    }
    group.step(plan).unwrap();
    let steps = (0..STEPS).map(|at| {
        let plan = StepPlan {
            step: at as u64 + 2,
            draft_steps: depth(at),
            parts: vec![PlanPart {
                extends: opens
                    .iter()
                    .map(|open| row(open.slot, 0, true, &[]))
                    .collect(),
                ..PlanPart::default()
            }],
            ..StepPlan::default()
        };
        let outputs = group.step(plan).unwrap().outputs.remove(0);
        let rounds = outputs.into_iter();
        rounds
            .map(|output| (output.draft_depth, output.token_ids))
            .collect()
    });
    steps.collect()
}

/// Returns the depth of the request at `at`, by step.
fn depths(rounds: &Rounds, at: usize) -> Vec<u32> {
    rounds.iter().map(|rows| rows[at].0).collect()
}

/// Returns the text of the request at `at`.
fn text(rounds: &Rounds, at: usize) -> Vec<u32> {
    rounds.iter().flat_map(|rows| rows[at].1.clone()).collect()
}

#[test]
fn a_request_whose_drafts_fail_drafts_less_and_texts_stay() {
    let opens = [hard(0), easy(1)];
    for (algorithm, shape, tp_size) in [
        ("EAGLE3", [3, 1, 4], 1),
        ("STANDALONE", [3, 1, 4], 2),
        ("EAGLE", [3, 4, 10], 2),
    ] {
        let config = adaptive(algorithm, shape, tp_size);
        let found = run(&config, &opens, |_| DEPTH);
        let (hard, easy) = (depths(&found, 0), depths(&found, 1));
        let cut = hard[30..].iter().filter(|depth| **depth < DEPTH).count();
        assert!(cut >= 26, "{algorithm}: {hard:?}");
        assert!(hard[30..].contains(&DEPTH), "tried again: {hard:?}");
        let full = easy[..KNOWN].iter().filter(|depth| **depth == DEPTH);
        assert!(full.count() > KNOWN - 4, "{algorithm}: {easy:?}");
        // The cuts show in no text.
        let mut plain = config.clone();
        plain.speculation = SpeculationConfig::none();
        let plain = run(&plain, &opens, |_| 0);
        for at in 0..2 {
            let (found, plain) = (text(&found, at), text(&plain, at));
            assert!(found.starts_with(&plain), "{algorithm}, request {at}");
        }
    }
}

/// The first step at a depth is drafted in full, since it may be a trial.
#[test]
fn a_depth_is_tried_by_all() {
    let trial = |at: usize| if at % 5 == 4 { 2 } else { DEPTH };
    let config = adaptive("EAGLE3", [3, 1, 4], 1);
    let found = run(&config, &[hard(0), easy(1), hard(2)], trial);
    for (at, rows) in found.iter().enumerate().skip(1) {
        if trial(at) != trial(at - 1) {
            let drafted: Vec<_> = rows.iter().map(|row| row.0).collect();
            assert_eq!(drafted, [trial(at); 3], "step {at}");
        }
    }
    assert!(depths(&found, 0).contains(&1));
}

/// A request that is alone drafts as deep as agreed, since the group's depth follows it. At a
/// depth that does not adapt, all requests draft that deep.
#[test]
fn nobody_is_cut_alone_or_at_a_fixed_depth() {
    let config = adaptive("EAGLE3", [3, 1, 4], 1);
    let alone = run(&config, &[hard(0)], |_| DEPTH);
    assert_eq!(depths(&alone, 0), [DEPTH; STEPS]);
    let mut fixed = config;
    fixed.speculation.adaptive = None;
    let found = run(&fixed, &[hard(0), easy(1)], |_| DEPTH);
    assert_eq!(depths(&found, 0), [DEPTH; STEPS]);
    assert_eq!(depths(&found, 1), [DEPTH; STEPS]);
}

/// If drafts are sampled, the drafts of the present step have no say in the depth. A request
/// without a past drafts as deep as agreed.
#[test]
fn drafts_that_are_sampled_are_cut_by_the_past_alone() {
    for verification in [Verification::Rejection, Verification::Block] {
        let mut config = adaptive("EAGLE3", [3, 1, 4], 1);
        config.speculation.verification = verification;
        let found = run(&config, &[easy(0), easy(1)], |_| DEPTH);
        let own = depths(&found, 0);
        let accepted: Vec<_> = found.iter().map(|rows| rows[0].1.len() - 1).collect();
        // The request's own past explains its depths.
        let mut past = lockstep_speculation::OwnDepths::new(1);
        for (at, (depth, accepted)) in own.iter().zip(accepted).enumerate() {
            let expected = if at == 0 {
                DEPTH
            } else {
                past.depth(0, 3) as u32
            };
            assert_eq!(*depth, expected, "{verification:?}, step {at}");
            past.count(0, *depth as usize, accepted);
        }
    }
}

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, Policies, Tier};
use proptest::prelude::*;

use super::*;
use crate::phases::list::{Kind, List, Phase, Spread};
use crate::phases::run::Step;

/// One phase in which each request answers a text of its own.
fn work(lengths: &[u32], streams: u32) -> Work {
    let items = lengths.iter().enumerate().map(|(text, tokens)| Item {
        text,
        tokens: *tokens,
        seed: None,
        dp_rank: None,
    });
    let phase = Phase {
        kind: Kind::Mixed,
        spread: Spread::Even,
        streams,
        falls: false,
        tokens: lengths.iter().sum(),
    };
    Work {
        phases: vec![(phase, items.collect())],
    }
}

/// Costs where a step takes `base + depth × draft + tokens × token` seconds.
fn costs(depths: &[u32], base: f64, draft: f64, token: f64) -> Costs {
    let steps = depths.iter().flat_map(|&depth| {
        (1..=8).map(move |decodes| {
            let tokens = f64::from(decodes * (depth + 1));
            Step {
                depth,
                decodes,
                took: base + f64::from(depth) * draft + tokens * token,
                ..Step::default()
            }
        })
    });
    Costs::new(&steps.collect::<Vec<_>>())
}

fn replay<'a>(work: &'a Work, log: &'a Log, costs: &'a Costs, lag: usize) -> Replay<'a> {
    Replay {
        work,
        log,
        costs,
        prompt_tokens: 1.0,
        lag,
    }
}

#[test]
fn a_fixed_depth_takes_what_can_be_worked_out() {
    // One stream, two requests of 13 tokens: the first comes from the prompt, and
    // each step brings three of the other twelve.
    let work = work(&[13, 13], 1);
    let log = Log {
        accepted: vec![vec![2; 13]; 2],
        different: 0,
    };
    let costs = costs(&[0, 2, 5], 10.0, 1.0, 0.5);
    for (depth, steps, step) in [(0, 12.0, 10.5), (2, 4.0, 13.5), (5, 4.0, 18.0)] {
        // Steps of prompts alone were not measured: they take as long as one row.
        let one = step * (steps + 1.0);
        let planned_late = replay(&work, &log, &costs, 1);
        assert_eq!(planned_late.seconds(Choice::Fixed(depth)), Some(2.0 * one));
        // With planning a step ahead, a request that may have a token left has a row too
        // many. Without drafts this never happens.
        let ahead = replay(&work, &log, &costs, 2);
        let extra = if depth == 0 { 0.0 } else { step };
        assert_eq!(
            ahead.seconds(Choice::Fixed(depth)),
            Some(2.0 * one + extra),
            "{depth}"
        );
    }
    // Prompts at depth 0.
    let oracle = replay(&work, &log, &costs, 1).oracle();
    assert_eq!(oracle, Some(2.0 * (10.5 + 13.5 * 4.0)));
    assert_eq!(
        replay(&work, &log, &costs, 1).seconds(Choice::Fixed(7)),
        None
    );
}

#[test]
fn the_oracle_goes_with_the_texts() {
    // Drafts of the first text are always right, drafts of the second never.
    let work = work(&[33, 33], 1);
    let log = Log {
        accepted: vec![vec![7; 33], vec![0; 33]],
        different: 0,
    };
    let costs = costs(&[0, 7], 10.0, 1.0, 0.0);
    let replay = replay(&work, &log, &costs, 1);
    // Prompts run at the cheapest depth; then there are 4 steps of 17 seconds and 32 of 10.
    let found = replay.seconds(Choice::Expected);
    assert_eq!(found, Some(10.0 + 4.0 * 17.0 + 10.0 + 32.0 * 10.0));
    assert_eq!(replay.oracle(), found);
}

#[test]
fn work_is_the_same_at_every_depth() {
    // Steps that take time only for their tokens show how many rows ran.
    let list = List::constant(3, 8);
    let texts: Vec<_> = (0..5)
        .map(|at| crate::phases::work::Text {
            domain: "story".to_owned(),
            prompt: vec![1],
            answer: vec![2; 9 + at],
        })
        .collect();
    let work = Work::new(&list, &texts, 1);
    let log = Log {
        accepted: texts
            .iter()
            .map(|text| vec![0; text.answer.len()])
            .collect(),
        different: 0,
    };
    let rows = costs(&[0, 3], 0.0, 0.0, 1.0);
    let replay = replay(&work, &log, &rows, 1);
    // Nothing is accepted: there is one row for each token, except for prompts' tokens.
    // These come beside others and cost nothing measured there.
    let plain = replay.seconds(Choice::Fixed(0)).unwrap_or_default();
    let deep = replay.seconds(Choice::Fixed(3)).unwrap_or_default();
    assert!(plain > 0.0);
    assert_eq!(deep, 4.0 * plain);
}

fn decider(policy: &str, profile: &[Seen]) -> Decider {
    let tiers = [0, 1, 3, 7].map(|depth| Tier {
        depth,
        tokens: depth + 1,
    });
    let slots = vec![BatchSlot::new(1, vec![0, 1, 3, 7])];
    let config = AdaptiveConfig::new(policy, 3, tiers.to_vec(), slots);
    Decider::new(&config, &Policies::builtin(), profile).expect("a policy of the crate")
}

#[test]
fn a_policy_that_stays_takes_what_its_depth_takes_and_others_follow_the_texts() {
    let lengths = [400; 4];
    let work = work(&lengths, 1);
    let costs = costs(&[0, 1, 3, 7], 10.0, 1.0, 0.5);
    let text = |accepted: u32| vec![accepted; 400];
    let log = Log {
        accepted: vec![text(0), text(7), text(0), text(7)],
        different: 0,
    };
    let replay = replay(&work, &log, &costs, 2);
    let profile = profile(&costs, 1);
    assert_eq!(profile.len(), 4, "{profile:?}");
    let stays = replay.policy_seconds(decider("static", &profile));
    let fixed = replay.seconds(Choice::Fixed(3));
    assert_eq!(stays, fixed);
    let adapts = replay.policy_seconds(decider("goodput", &profile));
    let oracle = replay.oracle();
    assert!(
        adapts < fixed && adapts > oracle,
        "{adapts:?} {fixed:?} {oracle:?}"
    );
}

proptest! {
    #[test]
    fn no_fixed_depth_beats_the_oracle(
        accepted in prop::collection::vec(prop::collection::vec(0_u32..8, 2..20), 1..8),
        streams in 1_u32..5,
        lag in 1_usize..3,
        (base, draft, token) in (0.1_f64..10.0, 0.0_f64..2.0, 0.0_f64..1.0),
    ) {
        let lengths: Vec<u32> = accepted.iter().map(|text| text.len() as u32).collect();
        let work = work(&lengths, streams);
        let log = Log { accepted, different: 0 };
        let costs = costs(&[0, 1, 3, 7], base, draft, token);
        let replay = replay(&work, &log, &costs, lag);
        let oracle = replay.oracle();
        prop_assert!(oracle.is_some_and(|seconds| seconds > 0.0));
        prop_assert!(replay.clairvoyant() <= oracle);
        for depth in [0, 1, 3, 7] {
            prop_assert!(replay.seconds(Choice::Fixed(depth)) >= oracle);
        }
    }
}

//! Tests of the order in which requests go first and yield.

use lockstep_planner::{PlannerConfig, RequestId, SchedulePolicy, sim::run_alone};
use lockstep_types::request::Request;

use super::*;

#[test]
fn longest_prefix_first_when_asked() {
    for (policy, first) in [(SchedulePolicy::Fcfs, 2), (SchedulePolicy::Lpm, 3)] {
        let one = PlannerConfig {
            max_running_requests: 1,
            schedule_policy: policy,
            ..config()
        };
        let mut engine = engine(&one);
        submit(&mut engine, 1, request(prompt(1, 20), 1));
        run(&mut engine);
        submit(&mut engine, 2, request(prompt(2, 20), 1));
        submit(&mut engine, 3, request(prompt(1, 20), 1));
        step(&mut engine, |_| {});
        assert_eq!(engine.outputs.last().unwrap().0, RequestId(first));
        run(&mut engine);
    }
}

#[test]
fn higher_priorities_go_first_and_far_higher_ones_displace() {
    let one = PlannerConfig {
        max_running_requests: 1,
        priority_scheduling: true,
        overlap: false,
        ..config()
    };
    let with = |id, priority| Request {
        priority,
        ..request(prompt(id, 20), 6)
    };
    let mut engine = engine(&one);
    submit(&mut engine, 1, with(1, 0));
    step(&mut engine, |_| {});
    submit(&mut engine, 2, with(2, 5));
    submit(&mut engine, 3, with(3, 9));
    step(&mut engine, |plan| {
        assert!(plan.parts[0].closes.is_empty(), "9 is not 10 above 0");
    });
    submit(&mut engine, 4, with(4, 10));
    step(&mut engine, |plan| {
        assert_eq!(
            (plan.parts[0].closes.len(), plan.parts[0].opens.len()),
            (1, 1)
        );
    });
    run(&mut engine);
    let ends = engine
        .outputs
        .iter()
        .filter(|(_, output)| output.finish.is_some());
    let order: Vec<u64> = ends.map(|(id, _)| id.0).collect();
    assert_eq!(order, [4, 3, 2, 1]);
    assert_eq!(engine.planner.load().counters.preemptions, 1);
    assert_eq!(
        tokens(&engine, 1),
        run_alone(MODEL, 128, &with(1, 0)).token_ids
    );
}

#[test]
fn the_last_to_come_is_retracted_and_goes_on_where_it_was() {
    let small = PlannerConfig {
        num_pages: 1 + 12,
        ..config()
    };
    for overlap in [false, true] {
        let small = PlannerConfig {
            overlap,
            ..small.clone()
        };
        let mut engine = engine(&small);
        engine.planner = engine.planner.with_conservativeness(0);
        for id in 1..=2 {
            submit(&mut engine, id, request(prompt(id, 10), 30));
        }
        run(&mut engine);
        let counters = engine.planner.load().counters;
        assert!(counters.retractions > 0);
        let ends = engine
            .outputs
            .iter()
            .filter(|(_, output)| output.finish.is_some());
        assert_eq!(ends.map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 2]);
        for id in 1..=2 {
            let alone = run_alone(MODEL, 128, &request(prompt(id, 10), 30));
            assert_eq!(tokens(&engine, id), alone.token_ids);
            let usage = finish(&engine, id).usage;
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), (10, 0));
        }
        assert_eq!(counters.prompt_tokens, 20);
        assert_eq!(counters.generated_tokens, 60);
    }
}

#[test]
fn a_plan_opens_no_more_tokens_than_travel_well() {
    const LONG: u32 = 1_500_000;
    let mut planner = Planner::new(PlannerConfig {
        page_size: 4096,
        num_pages: 4096,
        context_length: 2 * LONG,
        max_queued_tokens: 8 * u64::from(LONG),
        max_prefill_tokens: 8 * LONG,
        chunked_prefill_size: Some(8 * LONG),
        ..config()
    })
    .unwrap();
    for id in 0..4u32 {
        // The prompts share nothing from the first token on, so no request waits for a prefix.
        let request = request(vec![id; LONG as usize], 1);
        planner
            .submit(Millis(0), RequestId(id.into()), request)
            .unwrap();
    }
    let opens = |plan: Option<StepPlan>| plan.map(|plan| plan.parts[0].opens.len());
    assert_eq!(opens(planner.plan()), Some(3), "4.5 of 4 million tokens");
    assert_eq!(opens(planner.plan()), Some(1));
}

#[test]
fn who_outranks_by_far_takes_its_place_before_pages_run_out_for_others() {
    let tight = PlannerConfig {
        max_running_requests: 2,
        num_pages: 1 + 10,
        priority_scheduling: true,
        overlap: false,
        ..config()
    };
    let mut engine = engine(&tight);
    engine.planner = engine.planner.with_conservativeness(0);
    for id in 1..=2 {
        submit(&mut engine, id, request(prompt(id, 16), 8));
    }
    step(&mut engine, |plan| assert_eq!(prefills(plan), [16, 16]));
    // Then the five pages of each are full, and there are no more.
    (0..4).for_each(|_| step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 0])));
    let urgent = Request {
        priority: 10,
        ..request(prompt(3, 8), 2)
    };
    submit(&mut engine, 3, urgent);
    step(&mut engine, |plan| {
        assert_eq!(
            (plan.parts[0].closes.len(), plan.parts[0].opens.len()),
            (1, 1)
        );
    });
    let counters = engine.planner.load().counters;
    assert_eq!((counters.preemptions, counters.retractions), (1, 1));
    // One page for the first request, and two for the urgent one.
    assert_eq!(counters.evicted_tokens, 12);
    run(&mut engine);
}

#[test]
fn nobody_is_displaced_in_vain() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 20,
        priority_scheduling: true,
        overlap: false,
        ..config()
    });
    engine.planner = engine.planner.with_conservativeness(0);
    let with = |id, len, priority| Request {
        priority,
        ..request(prompt(id, len), 6)
    };
    submit(&mut engine, 1, with(1, 30, 20));
    submit(&mut engine, 2, with(2, 2, 0));
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 2));
    // Its 13 pages and more are not there without the first request's pages, and it does not
    // outrank the first.
    submit(&mut engine, 3, with(3, 52, 10));
    step(&mut engine, |plan| assert!(plan.parts[0].closes.is_empty()));
    run(&mut engine);
    assert_eq!(engine.planner.load().counters.preemptions, 0);
}

/// Pages that hold a request's own prefix are no room for it, because they stay in use.
#[test]
fn a_cached_prefix_is_no_room_for_who_begins_with_it() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 20,
        priority_scheduling: true,
        overlap: false,
        ..config()
    });
    engine.planner = engine.planner.with_conservativeness(0);
    submit(&mut engine, 1, request(prompt(1, 40), 1));
    run(&mut engine);
    submit(&mut engine, 2, request(prompt(2, 36), 30));
    (0..2).for_each(|_| step(&mut engine, |_| {}));
    // Half of the pages are free except for this prefix, and three more pages are missing.
    let urgent = Request {
        priority: 10,
        ..request([prompt(1, 40), prompt(3, 8)].concat(), 6)
    };
    submit(&mut engine, 3, urgent);
    step(&mut engine, |plan| {
        let part = &plan.parts[0];
        assert_eq!((part.closes.len(), part.opens.len()), (1, 1));
    });
    run(&mut engine);
    assert_eq!(engine.planner.load().counters.preemptions, 1);
    assert_eq!(finish(&engine, 3).usage.cached_tokens, 40);
}

#[test]
fn who_would_wait_for_a_prefix_displaces_nobody_yet() {
    let mut engine = engine(&PlannerConfig {
        max_running_requests: 1,
        priority_scheduling: true,
        overlap: false,
        ..config()
    });
    submit(&mut engine, 1, request(prompt(1, 100), 6));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [32]));
    let urgent = Request {
        priority: 10,
        ..request(prompt(1, 104), 6)
    };
    submit(&mut engine, 2, urgent);
    step(&mut engine, |plan| assert!(plan.parts[0].closes.is_empty()));
    run(&mut engine);
    assert_eq!(engine.planner.load().counters.preemptions, 1);
    assert!(finish(&engine, 2).usage.cached_tokens >= 64);
}

#[test]
fn what_running_requests_are_expected_to_want_falls_with_every_step() {
    let narrow = PlannerConfig {
        num_pages: 1 + 760 / 4,
        context_length: 1100,
        overlap: false,
        ..config()
    };
    let mut engine = engine(&narrow);
    // The first request wants about 0.7 of 700 tokens, and with the second request's tokens too
    // many.
    submit(&mut engine, 1, request(prompt(1, 10), 700));
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 1));
    submit(&mut engine, 2, request(prompt(2, 10), 390));
    step(&mut engine, |plan| assert!(plan.parts[0].opens.is_empty()));
    let mut steps = 0;
    while engine.planner.load().running_requests < 2 {
        assert!(engine.turn(Millis(0)).unwrap());
        steps += 1;
        assert!(steps < 600, "the first should still be running");
    }
    assert!(steps > 10, "{steps}");
    run(&mut engine);
}

//! Tests of choices: those of one client request share the slots that one request would get.

use lockstep_planner::{PlannerConfig, sim::run_alone};

use super::*;

const MANY: u64 = 1000;

fn eight() -> PlannerConfig {
    PlannerConfig {
        max_running_requests: 8,
        num_pages: 1 + 400,
        ..config()
    }
}

/// Submits the choices of a request. Their prompts share nothing.
fn choices(engine: &mut SimEngine, count: u64, tokens: u32) {
    for id in MANY..MANY + count {
        submit_choice(engine, id, MANY, request(prompt(id, 8), tokens));
    }
}

fn ended(engine: &SimEngine, id: u64) -> bool {
    let mut outputs = engine.outputs.iter();
    outputs.any(|(other, output)| *other == RequestId(id) && output.finish.is_some())
}

fn opens(plan: &StepPlan) -> Vec<u32> {
    plan.parts[0]
        .opens
        .iter()
        .map(|open| open.token_ids[0])
        .collect()
}

#[test]
fn others_get_up_to_half_of_the_slots_at_once_and_no_text_changes() {
    let mut engine = engine(&eight());
    choices(&mut engine, 20, 60);
    (0..4).for_each(|_| step(&mut engine, |_| {}));
    assert_eq!(
        engine.planner.load().running_requests,
        8,
        "nobody else waits"
    );
    for id in 1..=5 {
        submit(&mut engine, id, request(prompt(id, 8), 10));
    }
    let mut opened = Vec::new();
    for _ in 0..6 {
        step(&mut engine, |plan| opened.extend(opens(plan)));
    }
    let first: Vec<_> = (1..=4).map(|id| prompt(id, 1)[0]).collect();
    assert_eq!(
        opened, first,
        "the fifth would leave the choices less than half"
    );
    run(&mut engine);
    for id in 1..=5 {
        let alone = run_alone(MODEL, 128, &request(prompt(id, 8), 10));
        assert_eq!(tokens(&engine, id), alone.token_ids);
    }
    for id in MANY..MANY + 20 {
        let alone = run_alone(MODEL, 128, &request(prompt(id, 8), 60));
        assert_eq!(tokens(&engine, id), alone.token_ids);
    }
    assert_eq!(engine.planner.load().counters.preemptions, 4);
}

#[test]
fn whose_choices_took_all_memory_gives_others_some() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 64,
        ..eight()
    });
    engine.planner = engine.planner.with_conservativeness(0);
    // Six times eight pages and more: not all eight slots are used.
    choices(&mut engine, 20, 100);
    let mut steps = 0;
    while engine.planner.load().counters.retractions == 0 {
        step(&mut engine, |_| {});
        steps += 1;
        assert!(steps < 100, "memory should run out");
    }
    submit(&mut engine, 1, request(prompt(1, 16), 4));
    let mut steps = 0;
    while !ended(&engine, 1) {
        step(&mut engine, |_| {});
        steps += 1;
        assert!(steps < 20, "it waits for the choices");
    }
    run(&mut engine);
}

#[test]
fn two_requests_with_many_choices_share_evenly() {
    let mut engine = engine(&eight());
    choices(&mut engine, 20, 60);
    (0..4).for_each(|_| step(&mut engine, |_| {}));
    for id in 1..=20 {
        submit_choice(&mut engine, id, 1, request(prompt(id, 8), 60));
    }
    let mut opened = 0;
    for _ in 0..6 {
        step(&mut engine, |plan| opened += plan.parts[0].opens.len());
    }
    assert_eq!(opened, 4);
    run(&mut engine);
}

/// If the number of slots is odd, one request has one slot more than the other, and keeps it.
#[test]
fn a_slot_that_is_left_over_is_not_handed_to_and_fro() {
    let mut engine = engine(&PlannerConfig {
        max_running_requests: 7,
        ..eight()
    });
    choices(&mut engine, 20, 60);
    (0..4).for_each(|_| step(&mut engine, |_| {}));
    for id in 1..=20 {
        submit_choice(&mut engine, id, 1, request(prompt(id, 8), 60));
    }
    let mut opened = 0;
    for _ in 0..12 {
        step(&mut engine, |plan| opened += plan.parts[0].opens.len());
    }
    assert_eq!(opened, 3);
    assert_eq!(engine.planner.load().counters.preemptions, 3);
    run(&mut engine);
}

/// If pages run out, choices of a request that has more than half of all slots yield first, but
/// not before a less important request.
#[test]
fn the_least_important_yields_before_a_crowd() {
    for (other, yields) in [(0, 10), (5, MANY + 2)] {
        let mut engine = engine(&PlannerConfig {
            num_pages: 1 + 20,
            priority_scheduling: true,
            overlap: false,
            ..config()
        });
        engine.planner = engine.planner.with_conservativeness(0);
        let with = |id, priority| Request {
            priority,
            ..request(prompt(id, 16), 20)
        };
        for id in MANY..MANY + 3 {
            submit_choice(&mut engine, id, MANY, with(id, 5));
        }
        submit(&mut engine, 10, with(10, other));
        while engine.planner.load().counters.retractions == 0 {
            step(&mut engine, |_| {});
        }
        let live = engine.planner.live_requests();
        let waits: Vec<_> = live.iter().filter(|of| of.retracted).collect();
        assert_eq!(waits.len(), 1);
        assert_eq!(waits[0].id, RequestId(yields), "beside priority {other}");
        run(&mut engine);
    }
}

#[test]
fn endless_others_do_not_starve_choices_nor_they_others() {
    for slots in 1..=4 {
        let mut engine = engine(&PlannerConfig {
            max_running_requests: slots,
            overlap: false,
            ..config()
        });
        choices(&mut engine, 6, 5);
        let mut turns = 0;
        let mut submitted = 0;
        while !(MANY..MANY + 6).all(|id| ended(&engine, id)) {
            while engine.planner.load().waiting_requests < 12 {
                submitted += 1;
                submit(&mut engine, submitted, request(prompt(submitted, 8), 5));
            }
            assert!(engine.turn(Millis(0)).unwrap());
            turns += 1;
            assert!(turns < 1000, "{slots} slots: choices starve");
        }
        assert!(
            ended(&engine, submitted - 12),
            "{slots} slots: others starve"
        );
    }
}

#[test]
fn a_request_of_one_choice_displaces_nobody_of_its_like() {
    let mut engine = engine(&eight());
    for id in 1..=8 {
        submit(&mut engine, id, request(prompt(id, 8), 40));
    }
    (0..4).for_each(|_| step(&mut engine, |_| {}));
    submit(&mut engine, 9, request(prompt(9, 8), 4));
    (0..4).for_each(|_| step(&mut engine, |plan| assert!(plan.parts[0].opens.is_empty())));
    run(&mut engine);
    assert_eq!(engine.planner.load().counters.preemptions, 0);
}

//! Tests of held admission, as for new weights.

use super::*;

#[test]
fn while_held_who_has_begun_goes_on_and_nobody_begins() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 40), 6));
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 1));
    engine.planner.hold_admission(true);
    submit(&mut engine, 2, request(prompt(2, 9), 3));
    let busy = engine.planner.flush_cache().unwrap_err();
    assert_eq!((busy.running, busy.in_flight), (1, 0));
    while engine.turn(Millis(0)).unwrap() {
        engine.planner.check_integrity().unwrap();
    }
    assert_eq!(finish(&engine, 1).usage.completion_tokens, 6);
    assert!(tokens(&engine, 2).is_empty());
    assert_eq!(engine.planner.load().waiting_requests, 1);
    // Nothing computed before is left, although a request waits.
    assert!(engine.planner.flush_cache().unwrap() > 0);
    assert_eq!(engine.planner.plan(), None);
    engine.planner.hold_admission(false);
    run(&mut engine);
    assert_eq!(finish(&engine, 2).usage.completion_tokens, 3);
}

#[test]
fn who_was_retracted_is_let_in_again_while_held() {
    let tight = PlannerConfig {
        num_pages: 1 + 20,
        max_running_requests: 2,
        ..config()
    };
    let mut engine = engine(&tight);
    engine.planner = Planner::new(tight).unwrap().with_conservativeness(0);
    for id in 1..=3 {
        submit(&mut engine, id, request(prompt(id, 30), 30));
    }
    while engine.planner.load().counters.retractions == 0 {
        assert!(engine.turn(Millis(0)).unwrap());
    }
    engine.planner.hold_admission(true);
    while engine.turn(Millis(0)).unwrap() {
        let load = engine.planner.load();
        // The third request has not begun.
        let retracted = load.waiting_requests - 1;
        assert_eq!(engine.planner.retracted_requests(), retracted);
        let begun_waits = retracted > 0;
        assert!(!begun_waits || engine.planner.flush_cache().is_err());
    }
    for id in 1..=2 {
        assert_eq!(finish(&engine, id).usage.completion_tokens, 30);
    }
    assert_eq!(engine.planner.load().waiting_requests, 1);
    assert!(engine.planner.flush_cache().is_ok());
    engine.planner.hold_admission(false);
    run(&mut engine);
    assert_eq!(tokens(&engine, 3).len(), 30);
}

#[test]
fn a_held_request_of_high_priority_displaces_nobody() {
    let by_priority = PlannerConfig {
        priority_scheduling: true,
        max_running_requests: 1,
        ..config()
    };
    let mut engine = engine(&by_priority);
    submit(&mut engine, 1, request(prompt(1, 20), 5));
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 1));
    engine.planner.hold_admission(true);
    let urgent = Request {
        priority: 100,
        ..request(prompt(2, 20), 5)
    };
    submit(&mut engine, 2, urgent);
    while engine.turn(Millis(0)).unwrap() {}
    assert_eq!(finish(&engine, 1).usage.completion_tokens, 5);
    assert_eq!(engine.planner.load().counters.preemptions, 0);
}

//! Tests of the contents of steps and of their results.

use lockstep_planner::{Millis, PlannerConfig, PlannerError, sim::SimEngine};
use lockstep_types::{
    request::FinishReason,
    step::{SlotOutput, StepResult},
};

use super::*;

#[test]
fn decodes_go_first_and_prompts_fill_the_rest() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 10), 20));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [10]));
    submit(&mut engine, 2, request(prompt(2, 70), 20));
    submit(&mut engine, 3, request(prompt(3, 9), 20));
    // 32 less one decode row; a chunk that is not the last ends with a page.
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 28, 3]));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 28, 1]));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 14, 5]));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 0, 0]));
    run(&mut engine);
    let counters = engine.planner.load().counters;
    assert_eq!(counters.prefill_tokens, 10 + 70 + 9);
    assert_eq!(counters.decode_rows, 3 * 19);
}

#[test]
fn decode_rows_leave_a_quarter_of_the_budget_to_prompts() {
    let mut engine = engine(&PlannerConfig {
        max_running_requests: 5,
        chunked_prefill_size: Some(4),
        overlap: false,
        ..config()
    });
    for id in 1..=4 {
        submit(&mut engine, id, request(prompt(id, 4), 30));
        step(&mut engine, |_| {});
    }
    while engine.planner.load().counters.prefill_tokens < 16 {
        step(&mut engine, |_| {});
    }
    submit(&mut engine, 5, request(prompt(5, 4), 30));
    step(&mut engine, |plan| {
        assert_eq!(prefills(plan), [0, 0, 0, 0, 1]);
    });
    run(&mut engine);
}

#[test]
fn whole_prompts_without_chunking() {
    let whole = PlannerConfig {
        chunked_prefill_size: None,
        max_prefill_tokens: 20,
        ..config()
    };
    let mut engine = engine(&whole);
    submit(&mut engine, 1, request(prompt(1, 50), 3));
    submit(&mut engine, 2, request(prompt(2, 12), 3));
    submit(&mut engine, 3, request(prompt(3, 12), 3));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [50]));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 12]));
    step(&mut engine, |plan| assert_eq!(prefills(plan), [0, 0, 12]));
    run(&mut engine);
}

#[test]
fn two_steps_fly_under_overlap_and_the_known_end_is_not_overrun() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 5), 2));
    let first = engine.planner.plan().unwrap();
    let second = engine.planner.plan().unwrap();
    assert_eq!((prefills(&first), prefills(&second)), (vec![5], vec![0]));
    assert_eq!(engine.planner.plan(), None, "two are enough");
    for plan in [first, second] {
        let result = engine.workers.execute(&plan).unwrap();
        engine.planner.complete(Millis(0), result).unwrap();
        assert_eq!(engine.planner.plan(), None, "its second token is its last");
    }
    engine.outputs.extend(engine.planner.take_outputs());
    assert_eq!(finish(&engine, 1).outcome, Ok(FinishReason::Length));
    assert!(engine.planner.is_idle());
}

#[test]
fn results_that_do_not_fit_are_refused_and_change_nothing() {
    let mut engine = engine(&config());
    let result = |step, outputs: &[(u32, usize)]| StepResult {
        step,
        outputs: vec![
            outputs
                .iter()
                .map(|(slot, count)| SlotOutput {
                    slot: *slot,
                    token_ids: vec![1; *count],
                    ..SlotOutput::default()
                })
                .collect(),
        ],
        ..StepResult::default()
    };
    let refused =
        |engine: &mut SimEngine, result| engine.planner.complete(Millis(0), result).unwrap_err();
    assert!(matches!(
        refused(&mut engine, result(1, &[])),
        PlannerError::StepOrder { .. }
    ));
    submit(&mut engine, 1, request(prompt(1, 20), 50));
    let plan = engine.planner.plan().unwrap();
    assert!(matches!(
        refused(&mut engine, result(2, &[(0, 1)])),
        PlannerError::StepOrder { .. }
    ));
    for bad in [&[][..], &[(0, 2)], &[(1, 1)], &[(0, 1), (1, 1)]] {
        let error = refused(&mut engine, result(1, bad));
        assert!(matches!(error, PlannerError::BadResult { .. }), "{error}");
    }
    let good = engine.workers.execute(&plan).unwrap();
    engine.planner.complete(Millis(0), good).unwrap();
    run(&mut engine);
}

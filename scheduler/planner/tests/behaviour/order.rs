//! Who goes first, and who goes last.

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
        assert!(plan.closes.is_empty(), "9 is not 10 above 0");
    });
    submit(&mut engine, 4, with(4, 10));
    step(&mut engine, |plan| {
        assert_eq!((plan.closes.len(), plan.opens.len()), (1, 1));
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
        // Nothing is shared from the first token on, so nobody waits for a prefix.
        let request = request(vec![id; LONG as usize], 1);
        planner
            .submit(Millis(0), RequestId(id.into()), request)
            .unwrap();
    }
    let opens = |plan: Option<StepPlan>| plan.map(|plan| plan.opens.len());
    assert_eq!(opens(planner.plan()), Some(3), "4.5 of 4 million tokens");
    assert_eq!(opens(planner.plan()), Some(1));
}

//! Tests of waiting and prefill times, and of the requests that are counted.

use lockstep_planner::{Counters, Times};

use super::*;

/// Returns the count of the bucket of a time.
fn counted(times: &Times, ms: u64) -> u64 {
    let at = Times::BOUNDS_MS.iter().position(|bound| ms <= *bound);
    times.counts[at.unwrap_or(Times::BOUNDS_MS.len())]
}

#[test]
fn queue_and_prefill_are_timed_once_for_each_request() {
    let config = PlannerConfig {
        max_running_requests: 1,
        ..config()
    };
    let mut engine = engine(&config);
    submit(&mut engine, 1, request(prompt(1, 5), 2));
    submit(&mut engine, 2, request(prompt(2, 5), 2));
    engine.planner.tick(Millis(7));
    // The first is planned at 7 and has its first token at 30, its last one at
    // 130; then the second goes, and has its first token at 400.
    let mut times = [30, 130, 400, 400, 400].into_iter();
    while let Some(now) = times.next()
        && let Some(plan) = engine.planner.plan()
    {
        let result = engine.workers.execute(&plan).unwrap();
        engine.planner.complete(Millis(now), result).unwrap();
    }
    let counters = engine.planner.load().counters;
    assert_eq!(counters.queue.counts.iter().sum::<u64>(), 2);
    assert_eq!(counters.queue.sum_ms, 7 + 130);
    assert_eq!(
        (counted(&counters.queue, 7), counted(&counters.queue, 130)),
        (1, 1)
    );
    assert_eq!(counters.prefill.counts.iter().sum::<u64>(), 2);
    assert_eq!(counters.prefill.sum_ms, 23 + 270);
    assert_eq!(
        (
            counted(&counters.prefill, 23),
            counted(&counters.prefill, 270)
        ),
        (1, 1)
    );
}

#[test]
fn of_the_engines_own_requests_the_steps_alone_are_counted() {
    let mut engine = engine(&config());
    let probe = |engine: &mut SimEngine, id| {
        let (now, id) = (Millis(0), RequestId(id));
        engine
            .planner
            .submit_probe(now, id, request(prompt(1, 9), 1))
    };
    probe(&mut engine, 1).unwrap();
    run(&mut engine);
    assert_eq!(finish(&engine, 1).usage.completion_tokens, 1);
    probe(&mut engine, 2).unwrap();
    engine.planner.abort(RequestId(2));
    let own = engine.planner.load().counters;
    let expected = Counters {
        steps: 1,
        prefill_tokens: 9,
        ..Counters::default()
    };
    assert_eq!(own, expected);
    submit(&mut engine, 3, request(prompt(2, 5), 2));
    probe(&mut engine, 4).unwrap();
    run(&mut engine);
    let counters = engine.planner.load().counters;
    assert_eq!((counters.requests, counters.finished), (1, 1));
    assert_eq!((counters.prompt_tokens, counters.generated_tokens), (5, 2));
    for times in [counters.queue, counters.prefill] {
        assert_eq!(times.counts.iter().sum::<u64>(), 1);
    }
    assert!(counters.steps > own.steps);
}

#[test]
fn requests_that_have_not_ended_are_told_one_by_one() {
    let config = PlannerConfig {
        max_running_requests: 1,
        ..config()
    };
    let mut engine = engine(&config);
    engine.planner.tick(Millis(5));
    let probe = RequestId(9);
    let submitted = engine
        .planner
        .submit_probe(Millis(5), probe, request(prompt(9, 3), 1));
    submitted.unwrap();
    let counted = |engine: &SimEngine| {
        let (load, ranks) = (engine.planner.load(), engine.planner.dp_rank_loads());
        let of_ranks = ranks[0].running_requests;
        let tokens = [load.waiting_tokens, ranks[0].waiting_tokens];
        let requests = [load.running_requests, load.waiting_requests, of_ranks];
        (requests, tokens)
    };
    let none = ([0; 3], [0; 2]);
    assert_eq!(counted(&engine), none, "nobody asked for what waits");
    engine.planner.tick(Millis(6));
    let plan = engine.planner.plan().unwrap();
    assert_eq!(counted(&engine), none, "nobody asked for what runs");
    let busy = engine.planner.flush_cache().unwrap_err();
    assert_eq!((busy.running, busy.in_flight), (0, 1), "it ends by itself");
    let result = engine.workers.execute(&plan).unwrap();
    engine.planner.complete(Millis(7), result).unwrap();
    run(&mut engine);
    submit(&mut engine, 1, request(prompt(1, 5), 4));
    submit(&mut engine, 2, request(prompt(2, 7), 500));
    assert!(
        engine
            .planner
            .live_requests()
            .iter()
            .all(|of| of.dp_rank.is_none())
    );
    engine.planner.tick(Millis(30));
    let plan = engine.planner.plan().unwrap();
    let result = engine.workers.execute(&plan).unwrap();
    engine.planner.complete(Millis(40), result).unwrap();
    engine.planner.tick(Millis(45));
    let live = engine.planner.live_requests();
    let ids: Vec<_> = live.iter().map(|of| of.id.0).collect();
    assert_eq!(
        ids,
        [1, 2],
        "who runs comes first, and the engine's own are nobody's"
    );
    let [one, two] = &live[..] else {
        panic!("{live:?}")
    };
    assert_eq!(
        (one.dp_rank, one.cached_tokens, one.retracted),
        (Some(0), Some(0), false)
    );
    assert_eq!(
        (one.prompt_tokens, one.output_tokens, one.max_new_tokens),
        (5, 1, 4)
    );
    assert_eq!(
        (two.dp_rank, two.cached_tokens, two.age_ms),
        (None, None, one.age_ms)
    );
    assert_eq!(
        (two.prompt_tokens, two.output_tokens, two.max_new_tokens),
        (7, 0, 121)
    );
    run(&mut engine);
    assert!(engine.planner.live_requests().is_empty());
}

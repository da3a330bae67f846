//! What the planner promises, one case at a time.

use lockstep_planner::{
    CacheEvent, Millis, Planner, PlannerConfig, PlannerError, RequestId, SchedulePolicy,
    sim::{SimEngine, SimModel, SimWorker, run_alone},
};
use lockstep_proto::{
    request::{ErrorKind, Finish, FinishReason, Output, Request, RequestError},
    sampling::{LogprobParams, SamplingParams},
    step::{SlotOutput, StepPlan, StepResult},
};

const MODEL: SimModel = SimModel { vocab_size: 1000 };

fn config() -> PlannerConfig {
    PlannerConfig {
        max_running_requests: 4,
        page_size: 4,
        num_pages: 65,
        context_length: 128,
        chunked_prefill_size: Some(32),
        ..PlannerConfig::default()
    }
}

fn engine(config: &PlannerConfig) -> SimEngine {
    let planner = Planner::new(config.clone()).unwrap();
    SimEngine::new(planner, SimWorker::new(config, MODEL, true))
}

fn request(input_ids: Vec<u32>, max_new_tokens: u32) -> Request {
    Request {
        trace_id: "test".into(),
        input_ids,
        sampling: SamplingParams::greedy(),
        logprobs: LogprobParams::default(),
        max_new_tokens,
        priority: 0,
        timeout_ms: None,
    }
}

/// A prompt no other shares a token with.
fn prompt(id: u64, len: u32) -> Vec<u32> {
    (0..len)
        .map(|at| (id as u32 * 131 + at * 7) % 1000)
        .collect()
}

fn submit(engine: &mut SimEngine, id: u64, request: Request) {
    engine
        .planner
        .submit(Millis(0), RequestId(id), request)
        .unwrap();
}

fn run(engine: &mut SimEngine) {
    let mut turns = 0;
    while engine.turn(Millis(0)).unwrap() {
        engine.planner.check_integrity().unwrap();
        turns += 1;
        assert!(turns < 10_000);
    }
    assert!(engine.planner.is_idle());
}

fn finish(engine: &SimEngine, id: u64) -> Finish {
    let mut of_id = engine
        .outputs
        .iter()
        .filter(|(other, _)| *other == RequestId(id));
    let finish = of_id.find_map(|(_, output)| output.finish.clone());
    finish.expect("the request has ended")
}

fn tokens(engine: &SimEngine, id: u64) -> Vec<u32> {
    let of_id = engine
        .outputs
        .iter()
        .filter(|(other, _)| *other == RequestId(id));
    of_id
        .flat_map(|(_, output)| output.token_ids.clone())
        .collect()
}

/// Plans one step, runs it, takes the result.
fn step(engine: &mut SimEngine, planner_sees: impl FnOnce(&StepPlan)) {
    let plan = engine.planner.plan().expect("there is work");
    planner_sees(&plan);
    let result = engine.worker.execute(&plan).unwrap();
    engine.planner.complete(Millis(0), result).unwrap();
    engine.outputs.extend(engine.planner.take_outputs());
}

fn prefills(plan: &StepPlan) -> Vec<u32> {
    plan.extends
        .iter()
        .map(|extend| extend.prefill_len)
        .collect()
}

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
fn a_prompt_is_found_again_in_whole_pages() {
    let mut engine = engine(&config());
    let cached = [
        (40, 40, 36),
        (41, 41, 40),
        (43, 43, 40),
        (43, 30, 28),
        (43, 3, 0),
    ];
    for (round, (first, second, cached)) in (0u64..).zip(cached) {
        let all = prompt(100 + round, 60);
        submit(&mut engine, 2 * round, request(all[..first].to_vec(), 1));
        run(&mut engine);
        submit(
            &mut engine,
            2 * round + 1,
            request(all[..second].to_vec(), 1),
        );
        run(&mut engine);
        assert_eq!(finish(&engine, 2 * round).usage.cached_tokens, 0);
        assert_eq!(finish(&engine, 2 * round + 1).usage.cached_tokens, cached);
    }
    let load = engine.planner.load();
    assert_eq!((load.kv_tokens_used, load.leaked_pages), (0, 0));
    assert_eq!(load.counters.cached_tokens, 36 + 40 + 40 + 28);
    assert_eq!(engine.planner.flush_cache(), Ok(load.kv_tokens_cached));
    assert_eq!(engine.planner.load().kv_tokens_cached, 0);
}

#[test]
fn output_is_cached_too_but_never_past_a_stop() {
    let mut engine = engine(&config());
    let first = request(prompt(7, 16), 30);
    let alone = run_alone(MODEL, 128, &first);
    let stop = alone.token_ids[8];
    let mut stopped = first.clone();
    stopped.sampling.stop_token_ids = vec![stop];
    submit(&mut engine, 1, stopped);
    run(&mut engine);
    let end = finish(&engine, 1);
    assert_eq!(end.outcome, Ok(FinishReason::Stop));
    assert_eq!(
        (end.matched_token, end.usage.completion_tokens),
        (Some(stop), 9)
    );
    assert_eq!(tokens(&engine, 1), alone.token_ids[..9]);
    // 16 + 8 tokens have KV: the stop token itself was never fed back.
    let mut next = first.input_ids.clone();
    next.extend(&alone.token_ids);
    submit(&mut engine, 2, request(next, 1));
    run(&mut engine);
    assert_eq!(finish(&engine, 2).usage.cached_tokens, 24);
}

#[test]
fn requests_wait_for_a_prefix_under_way() {
    for (shared, admitted_at_once) in [(40, 1), (20, 3)] {
        let wide = PlannerConfig {
            chunked_prefill_size: Some(256),
            ..config()
        };
        let mut engine = engine(&wide);
        for id in 1..=3 {
            let mut ids = prompt(99, shared);
            ids.extend(prompt(id, 8));
            submit(&mut engine, id, request(ids, 4));
        }
        step(&mut engine, |plan| {
            assert_eq!(plan.opens.len(), admitted_at_once)
        });
        run(&mut engine);
        let cached = if admitted_at_once == 1 { shared } else { 0 };
        assert_eq!(finish(&engine, 3).usage.cached_tokens, cached);
    }
}

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
        assert!(plan.closes.is_empty(), "9 is not 10 above 0")
    });
    submit(&mut engine, 4, with(4, 10));
    step(&mut engine, |plan| {
        assert_eq!((plan.closes.len(), plan.opens.len()), (1, 1))
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
fn two_steps_fly_under_overlap_and_the_known_end_is_not_overrun() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 5), 2));
    let first = engine.planner.plan().unwrap();
    let second = engine.planner.plan().unwrap();
    assert_eq!((prefills(&first), prefills(&second)), (vec![5], vec![0]));
    assert_eq!(engine.planner.plan(), None, "two are enough");
    for plan in [first, second] {
        let result = engine.worker.execute(&plan).unwrap();
        engine.planner.complete(Millis(0), result).unwrap();
        assert_eq!(engine.planner.plan(), None, "its second token is its last");
    }
    engine.outputs.extend(engine.planner.take_outputs());
    assert_eq!(finish(&engine, 1).outcome, Ok(FinishReason::Length));
    assert!(engine.planner.is_idle());
}

#[test]
fn scoring_brings_prompt_logprobs_and_no_token() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(5, 50), 1));
    run(&mut engine);
    for start in [0, 1, 20, 49, 50] {
        let id = 10 + u64::from(start);
        let mut score = request(prompt(5, 50), 0);
        score.logprobs.prompt_start = Some(start);
        submit(&mut engine, id, score.clone());
        run(&mut engine);
        let (_, output) = engine.outputs.last().unwrap();
        assert_eq!(
            output.prompt_logprobs,
            run_alone(MODEL, 128, &score).prompt_logprobs
        );
        assert_eq!(output.prompt_logprobs.len() as u32, 50 - start);
        assert!(output.token_ids.is_empty());
        let end = finish(&engine, id);
        assert_eq!(end.outcome, Ok(FinishReason::Length));
        // The cache serves what lies before the logits of `start - 1`.
        assert_eq!(
            end.usage.cached_tokens,
            start.saturating_sub(1).min(49) / 4 * 4
        );
    }
}

#[test]
fn the_context_length_ends_a_request() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 120), 1000));
    run(&mut engine);
    let end = finish(&engine, 1);
    assert_eq!(end.outcome, Ok(FinishReason::Length));
    assert_eq!(end.usage.completion_tokens, 8);
}

#[test]
fn what_can_never_run_is_refused_by_name() {
    let tight = PlannerConfig {
        num_pages: 1 + 20,
        ..config()
    };
    let mut engine = engine(&tight);
    let scored = |start, max_new| {
        let mut request = request(prompt(1, 5), max_new);
        request.logprobs.prompt_start = start;
        request
    };
    let table = [
        (request(vec![], 5), "input_ids", "empty"),
        (request(prompt(1, 128), 5), "input_ids", "--context-length"),
        (
            request(prompt(1, 40), 60),
            "max_new_tokens",
            "--max-total-tokens",
        ),
        (
            request(prompt(1, 5), 0),
            "max_new_tokens",
            "log-probabilities",
        ),
        (scored(Some(6), 3), "logprob_start_len", "past the prompt"),
        (
            Request {
                priority: 1,
                ..request(prompt(1, 5), 3)
            },
            "priority",
            "--enable-priority-scheduling",
        ),
    ];
    for (request, param, remedy) in table {
        let error = engine
            .planner
            .submit(Millis(0), RequestId(1), request)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert_eq!(error.param.as_deref(), Some(param));
        assert!(error.message.contains(remedy), "{}", error.message);
    }
    submit(&mut engine, 1, request(prompt(1, 40), 39));
    let again = engine
        .planner
        .submit(Millis(0), RequestId(1), request(prompt(1, 4), 4));
    assert_eq!(again.unwrap_err().kind, ErrorKind::Invalid);
    run(&mut engine);
    assert_eq!(tokens(&engine, 1).len(), 39, "exactly full is not too full");
}

#[test]
fn full_queues_refuse_with_a_time_to_come_back() {
    let narrow = PlannerConfig {
        max_running_requests: 2,
        max_queued_requests: 3,
        max_queued_tokens: 100,
        ..config()
    };
    let mut planner = Planner::new(narrow).unwrap();
    let mut refusals = |len: u32, from: u64| -> Option<RequestError> {
        (from..from + 10).find_map(|id| {
            let request = request(prompt(id, len), 4);
            planner.submit(Millis(0), RequestId(id), request).err()
        })
    };
    let by_count = refusals(4, 0).unwrap();
    assert!(
        by_count.message.contains("--max-queued-requests"),
        "{}",
        by_count.message
    );
    assert_eq!(by_count.kind, ErrorKind::Overloaded);
    assert!(by_count.retry_after_s.unwrap() >= 1);
    assert_eq!(
        planner.load().waiting_requests,
        5,
        "two free slots and three places"
    );
    (0..10).for_each(|id| planner.abort(RequestId(id)));
    let mut planner = Planner::new(planner.config().clone()).unwrap();
    for id in 0..2 {
        planner
            .submit(Millis(0), RequestId(id), request(prompt(id, 50), 4))
            .unwrap();
    }
    let error = planner
        .submit(Millis(0), RequestId(9), request(prompt(9, 1), 4))
        .unwrap_err();
    assert!(
        error.message.contains("--max-queued-tokens"),
        "{}",
        error.message
    );
    assert_eq!(planner.load().counters.rejected, 1);
}

#[test]
fn time_limits_end_requests_wherever_they_are() {
    let limited = PlannerConfig {
        max_running_requests: 1,
        queue_timeout_ms: Some(50),
        request_timeout_ms: Some(1000),
        ..config()
    };
    let mut engine = engine(&limited);
    submit(&mut engine, 1, request(prompt(1, 9), 100));
    submit(&mut engine, 2, request(prompt(2, 9), 100));
    submit(
        &mut engine,
        3,
        Request {
            timeout_ms: Some(20),
            ..request(prompt(3, 9), 100)
        },
    );
    assert!(engine.turn(Millis(1)).unwrap());
    engine.planner.tick(Millis(19));
    assert_eq!(engine.planner.take_outputs().count(), 0);
    for (now, id, kind) in [
        (20, 3, ErrorKind::Timeout),
        (50, 2, ErrorKind::Overloaded),
        (1000, 1, ErrorKind::Timeout),
    ] {
        engine.planner.tick(Millis(now));
        engine.planner.check_integrity().unwrap();
        let ends: Vec<(RequestId, Output)> = engine.planner.take_outputs().collect();
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].0, RequestId(id));
        let error = ends[0].1.finish.clone().unwrap().outcome.unwrap_err();
        assert_eq!(error.kind, kind);
        assert_eq!(error.retry_after_s.is_some(), kind == ErrorKind::Overloaded);
    }
    run(&mut engine);
    assert_eq!(engine.planner.load().counters.timed_out, 3);
    assert_eq!(engine.planner.load().kv_tokens_used, 0);
}

#[test]
fn an_abort_frees_everything_once() {
    let mut engine = engine(&config());
    engine.planner.abort(RequestId(77));
    for id in 1..=6 {
        submit(&mut engine, id, request(prompt(id, 20), 50));
    }
    (0..4).for_each(|_| assert!(engine.turn(Millis(0)).unwrap()));
    for id in 1..=6 {
        engine.planner.abort(RequestId(id));
        engine.planner.abort(RequestId(id));
        engine.planner.check_integrity().unwrap();
    }
    run(&mut engine);
    for id in 1..=6 {
        assert_eq!(finish(&engine, id).outcome, Ok(FinishReason::Abort));
    }
    let load = engine.planner.load();
    assert_eq!(
        (
            load.counters.aborted,
            load.kv_tokens_used,
            load.running_requests
        ),
        (6, 0, 0)
    );
}

#[test]
fn results_that_do_not_fit_are_refused_and_change_nothing() {
    let mut engine = engine(&config());
    let result = |step, outputs: &[(u32, usize)]| StepResult {
        step,
        outputs: outputs
            .iter()
            .map(|(slot, count)| SlotOutput {
                slot: *slot,
                token_ids: vec![1; *count],
                ..SlotOutput::default()
            })
            .collect(),
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
    for bad in [&[][..], &[(0, 0)], &[(0, 2)], &[(1, 1)], &[(0, 1), (1, 1)]] {
        let error = refused(&mut engine, result(1, bad));
        assert!(matches!(error, PlannerError::BadResult { .. }), "{error}");
    }
    let good = engine.worker.execute(&plan).unwrap();
    engine.planner.complete(Millis(0), good).unwrap();
    run(&mut engine);
}

#[test]
fn cache_events_tell_what_is_stored() {
    let told = PlannerConfig {
        kv_events: true,
        ..config()
    };
    let mut engine = engine(&told);
    submit(&mut engine, 1, request(prompt(1, 10), 3));
    run(&mut engine);
    let events: Vec<CacheEvent> = engine.planner.cache_events().collect();
    let CacheEvent::BlockStored {
        parent: None,
        blocks,
        block_size: 4,
    } = &events[0]
    else {
        panic!("{events:?}");
    };
    assert_eq!(blocks[1].token_ids, prompt(1, 10)[4..8]);
    // Prompt and output hold 12 tokens of KV: a third block, after the first two.
    let parent = blocks[1].hash;
    assert!(
        matches!(&events[1], CacheEvent::BlockStored { parent: Some(hash), .. } if *hash == parent)
    );
    assert_eq!(engine.planner.cache_snapshot(), events);
    engine.planner.flush_cache().unwrap();
    assert_eq!(
        engine.planner.cache_events().collect::<Vec<_>>(),
        [CacheEvent::Cleared]
    );
    assert!(engine.planner.cache_snapshot().is_empty());
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let bad = [
        PlannerConfig {
            page_size: 0,
            ..config()
        },
        PlannerConfig {
            num_pages: 1,
            ..config()
        },
        PlannerConfig {
            max_running_requests: 0,
            ..config()
        },
        PlannerConfig {
            chunked_prefill_size: Some(0),
            ..config()
        },
        PlannerConfig {
            num_pages: 1 << 28,
            page_size: 16,
            ..config()
        },
    ];
    for bad in bad {
        assert!(matches!(
            Planner::new(bad),
            Err(PlannerError::Config { .. })
        ));
    }
}

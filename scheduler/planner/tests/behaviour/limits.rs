//! Tests of requests that are refused or ended early.

use lockstep_planner::{Millis, Planner, PlannerConfig, PlannerError, RequestId};
use lockstep_types::{
    constraint::{Constraint, ConstraintKind},
    request::{ErrorKind, FinishReason, Output, Request, RequestError},
    step::SlotOpen,
};

use super::*;

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
        request.generation.logprobs.prompt_start = start;
        request
    };
    let table = [
        (request(vec![], 5), "input_ids", "empty"),
        (request(prompt(1, 128), 5), "input_ids", "--context-length"),
        (
            request(prompt(1, 40), 42),
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
    submit(&mut engine, 1, request(prompt(1, 40), 41));
    let again = engine
        .planner
        .submit(Millis(0), RequestId(1), request(prompt(1, 4), 4));
    assert_eq!(again.unwrap_err().kind, ErrorKind::Invalid);
    run(&mut engine);
    assert_eq!(tokens(&engine, 1).len(), 41, "exactly full is not too full");
}

/// A plan carries the constraints of the requests that it opens, and has to fit a message. So it
/// opens no more once they take 4 MiB, and the next plan goes on.
#[test]
fn a_plan_opens_as_many_constraints_as_a_message_holds() {
    let wide = PlannerConfig {
        max_running_requests: 100,
        num_pages: 1 + 400,
        chunked_prefill_size: None,
        ..config()
    };
    let longest = Constraint::new(ConstraintKind::Regex, "a".repeat(64 << 10));
    for (constraint, expected) in [
        (Some(std::sync::Arc::new(longest)), vec![64, 36]),
        (None, vec![100]),
    ] {
        let mut engine = engine(&wide);
        for id in 0..100 {
            let mut request = request(prompt(id, 4), 4);
            request.generation.constraint = constraint.clone();
            submit(&mut engine, id, request);
        }
        let mut opened = Vec::new();
        while opened.iter().sum::<usize>() < 100 {
            step(&mut engine, |plan| {
                let opens = &plan.parts[0].opens;
                let text = |open: &SlotOpen| {
                    let constraint = open.generation.constraint.as_ref();
                    constraint.map_or(0, |constraint| constraint.text.len())
                };
                let bytes: usize = opens.iter().map(text).sum();
                assert!(bytes <= 4 << 20, "{bytes}");
                opened.push(opens.len());
            });
        }
        assert_eq!(opened, expected);
        run(&mut engine);
    }
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

/// More requests wait for one DP rank than the queue has places, since others have followed
/// their prefix there. A request that has a slot elsewhere is not refused for that.
#[test]
fn who_has_a_free_slot_is_taken_however_many_wait_for_others() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 2,
        max_queued_requests: 1,
        ..config()
    });
    let named = |dp_rank, request| Request {
        data_parallel_rank: Some(dp_rank),
        ..request
    };
    submit(&mut engine, 1, named(0, request(prompt(1, 24), 1)));
    run(&mut engine);
    for id in 2..=3 {
        let longer = [prompt(1, 24), prompt(id, 3)].concat();
        submit(&mut engine, id, request(longer, 20));
    }
    for id in 4..=5 {
        submit(&mut engine, id, named(0, request(prompt(id, 5), 20)));
    }
    step(&mut engine, |plan| {
        assert_eq!([0, 1].map(|at: usize| plan.parts[at].opens.len()), [2, 0]);
    });
    let own = named(0, request(prompt(6, 5), 4));
    let refused = engine.planner.submit(Millis(0), RequestId(6), own);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Overloaded);
    submit(&mut engine, 7, named(1, request(prompt(7, 5), 4)));
    run(&mut engine);
}

#[test]
fn the_time_to_come_back_follows_the_pace_of_admission() {
    let narrow = PlannerConfig {
        max_running_requests: 1,
        max_queued_requests: 1,
        ..config()
    };
    let mut engine = engine(&narrow);
    for id in 0..3 {
        let now = Millis(10_000 * id);
        let planner = &mut engine.planner;
        planner
            .submit(now, RequestId(id), request(prompt(id, 9), 2))
            .unwrap();
        while engine.turn(now).unwrap() {}
    }
    let refused = (3..9).find_map(|id| {
        let request = request(prompt(id, 9), 2);
        let planner = &mut engine.planner;
        planner.submit(Millis(20_000), RequestId(id), request).err()
    });
    assert_eq!(refused.unwrap().retry_after_s, Some(10));
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
    let within = |of: u64, timeout_ms: u32| Request {
        timeout_ms: Some(timeout_ms),
        ..request(prompt(of, 9), 100)
    };
    // The request's own limit is beyond the server's.
    submit(&mut engine, 1, within(1, 4000));
    submit(&mut engine, 2, request(prompt(2, 9), 100));
    submit(&mut engine, 3, within(3, 20));
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
fn time_does_not_go_back() {
    let mut engine = engine(&config());
    engine.planner.tick(Millis(100));
    let limited = Request {
        timeout_ms: Some(50),
        ..request(prompt(1, 9), 100)
    };
    submit(&mut engine, 1, limited);
    for (now, ended) in [(60, 0), (149, 0), (150, 1)] {
        engine.planner.tick(Millis(now));
        assert_eq!(engine.planner.take_outputs().count(), ended, "{now}");
    }
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
fn a_stop_ends_a_request_well_wherever_it_is() {
    let narrow = PlannerConfig {
        max_running_requests: 1,
        ..config()
    };
    let mut engine = engine(&narrow);
    engine.planner.stop(RequestId(77));
    for id in 1..=2 {
        submit(&mut engine, id, request(prompt(id, 20), 50));
    }
    (0..4).for_each(|_| assert!(engine.turn(Millis(0)).unwrap()));
    let written = tokens(&engine, 1).len();
    assert!(written > 0, "one runs, one waits");
    for id in 1..=2 {
        engine.planner.stop(RequestId(id));
        engine.planner.stop(RequestId(id));
        engine.planner.check_integrity().unwrap();
    }
    run(&mut engine);
    for id in 1..=2 {
        assert_eq!(finish(&engine, id).outcome, Ok(FinishReason::Stop));
    }
    let usage = finish(&engine, 1).usage;
    assert_eq!(usage.completion_tokens as usize, written);
    let load = engine.planner.load();
    assert_eq!((load.counters.finished, load.counters.aborted), (2, 0));
    assert_eq!(load.kv_tokens_used, 0);
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let bad = [
        PlannerConfig {
            dp_size: 0,
            ..config()
        },
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

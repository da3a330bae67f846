//! Tests of the choice of DP ranks, and that DP ranks do not hold each other up.

use lockstep_planner::{DpRankCounters, DpRankLoad, ReserveConfig, SchedulePolicy};
use lockstep_types::{
    request::{ErrorKind, FinishReason},
    step::PlanPart,
};

use super::*;

fn dp_engine(dp_size: u32) -> SimEngine {
    engine(&PlannerConfig {
        dp_size,
        ..config()
    })
}

fn named(dp_rank: u32, request: Request) -> Request {
    Request {
        data_parallel_rank: Some(dp_rank),
        ..request
    }
}

/// Returns the first tokens of the requests that a plan opens, by DP rank.
fn opened(plan: &StepPlan) -> Vec<Vec<u32>> {
    let part = |part: &PlanPart| part.opens.iter().map(|open| open.token_ids[0]).collect();
    plan.parts.iter().map(part).collect()
}

/// Plans one step and runs it. Returns the requests that it opened, by DP rank.
fn step_opens(engine: &mut SimEngine) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    step(engine, |plan| all = opened(plan));
    all
}

/// Returns a prompt that begins with `id` and shares no token with any other.
fn text(id: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| (id + at * 31) % 1000).collect()
}

#[test]
fn requests_go_where_least_is_to_be_done() {
    let mut engine = dp_engine(4);
    for (id, len) in [(0, 20), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)] {
        submit(&mut engine, id, request(text(id as u32, len), 20));
    }
    let opens = step_opens(&mut engine);
    // As many requests run in the first DP rank, but more pages are in use there.
    assert_eq!(opens, [vec![0], vec![1, 4], vec![2, 5], vec![3]]);
    for (id, opens) in [(6, [0, 0, 0, 1]), (7, [1, 0, 0, 0]), (8, [0, 1, 0, 0])] {
        submit(&mut engine, id, request(text(id as u32, 5), 20));
        let counts = step_opens(&mut engine).into_iter().map(|part| part.len());
        assert_eq!(counts.collect::<Vec<_>>(), opens, "{id}");
    }
    run(&mut engine);
}

#[test]
fn a_dp_rank_without_work_has_an_empty_part() {
    let mut engine = dp_engine(3);
    submit(&mut engine, 1, named(1, request(text(1, 5), 3)));
    for steps in 1..=3 {
        step(&mut engine, |plan| {
            assert_eq!((plan.step, plan.parts.len()), (steps, 3));
            assert_eq!(plan.parts[0], PlanPart::default());
            assert_eq!(plan.parts[1].extends.len(), 1);
            assert_eq!(plan.parts[2], PlanPart::default());
        });
    }
    assert_eq!(engine.planner.plan(), None, "nobody has work");
    // An ended request closes with the next step of any DP rank.
    submit(&mut engine, 2, named(0, request(text(2, 5), 1)));
    step(&mut engine, |plan| {
        assert_eq!(
            (plan.parts[1].closes.len(), plan.parts[1].extends.len()),
            (1, 0)
        );
    });
}

#[test]
fn a_request_follows_its_cached_prefix() {
    let mut engine = dp_engine(2);
    submit(&mut engine, 1, named(1, request(text(1, 24), 1)));
    run(&mut engine);
    // DP rank 0 would come first otherwise.
    let longer = [text(1, 24), text(500, 5)].concat();
    submit(&mut engine, 2, request(longer, 1));
    assert_eq!(step_opens(&mut engine), [vec![], vec![1]]);
    assert_eq!(finish(&engine, 2).usage.cached_tokens, 24);
}

/// A busier DP rank with the whole prefix is better than an idle one with less of it.
#[test]
fn a_longer_cached_prefix_goes_before_a_smaller_load() {
    let mut engine = dp_engine(3);
    submit(&mut engine, 1, named(1, request(text(1, 24), 1)));
    submit(&mut engine, 2, named(2, request(text(1, 8), 1)));
    run(&mut engine);
    submit(&mut engine, 3, named(1, request(text(300, 5), 20)));
    step(&mut engine, |_| ());
    let longer = [text(1, 24), text(500, 5)].concat();
    submit(&mut engine, 4, request(longer, 1));
    assert_eq!(step_opens(&mut engine), [vec![], vec![1], vec![]]);
    run(&mut engine);
    assert_eq!(finish(&engine, 4).usage.cached_tokens, 24);
}

/// The cache of a DP rank does not count for a request that may not run there.
#[test]
fn the_longest_prefix_is_one_where_the_request_may_run() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 1,
        schedule_policy: SchedulePolicy::Lpm,
        ..config()
    });
    submit(&mut engine, 1, named(0, request(text(1, 20), 1)));
    submit(&mut engine, 2, named(1, request(text(2, 12), 1)));
    run(&mut engine);
    submit(&mut engine, 3, named(1, request(text(1, 20), 1)));
    submit(&mut engine, 4, named(1, request(text(2, 12), 1)));
    assert_eq!(step_opens(&mut engine), [vec![], vec![2]]);
    assert_eq!(step_opens(&mut engine), [vec![], vec![1]]);
    run(&mut engine);
}

#[test]
fn a_prefix_that_all_share_does_not_bring_all_to_one_dp_rank() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 16,
        num_pages: 200,
        chunked_prefill_size: Some(128),
        ..config()
    });
    submit(&mut engine, 99, request(text(1, 16), 1));
    run(&mut engine);
    for id in 0..16 {
        let own = [text(1, 16), text(100 + 31 * id, 5)].concat();
        submit(&mut engine, u64::from(id), request(own, 20));
    }
    let opens = step_opens(&mut engine);
    let counts = opens.iter().map(Vec::len).collect::<Vec<_>>();
    assert!(counts[0] > counts[1] && counts[1] >= 5, "{counts:?}");
    run(&mut engine);
}

#[test]
fn free_slots_of_all_dp_ranks_are_filled_at_once() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 8,
        max_running_requests: 16,
        ..config()
    });
    for id in 0..8 * 16 {
        submit(&mut engine, u64::from(id), request(text(id, 1), 4));
    }
    let counts = step_opens(&mut engine).into_iter().map(|part| part.len());
    assert_eq!(counts.collect::<Vec<_>>(), [16; 8]);
    run(&mut engine);
}

#[test]
fn a_request_runs_in_the_dp_rank_that_it_names() {
    let mut engine = dp_engine(2);
    for id in 0..4 {
        submit(&mut engine, id, named(1, request(text(id as u32, 5), 9)));
    }
    assert_eq!(step_opens(&mut engine), [vec![], vec![0, 1, 2, 3]]);
    run(&mut engine);
}

#[test]
fn a_dp_rank_that_is_not_there_is_refused_before_anything_is_queued() {
    for (dp_size, named_rank, remedy) in [(1, 1, "from 0 to 0"), (2, 2, "from 0 to 1")] {
        let mut engine = dp_engine(dp_size);
        let wrong = named(named_rank, request(text(1, 5), 9));
        let error = engine
            .planner
            .submit(Millis(0), RequestId(1), wrong)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert_eq!(error.param.as_deref(), Some("data_parallel_rank"));
        assert!(error.message.contains(remedy), "{error}");
        assert_eq!(engine.planner.load().waiting_requests, 0);
        let last = named(named_rank - 1, request(text(1, 5), 9));
        submit(&mut engine, 1, last);
        run(&mut engine);
        assert_eq!(finish(&engine, 1).outcome, Ok(FinishReason::Length));
    }
}

/// DP rank 0 has no slot, or no pages for the first request that waits for it. Other DP ranks
/// go on, however many requests wait for DP rank 0.
#[test]
fn a_full_dp_rank_holds_nobody_up_elsewhere() {
    for slots in [1, 4] {
        let mut engine = engine(&PlannerConfig {
            dp_size: 2,
            max_running_requests: slots,
            num_pages: 17,
            ..config()
        });
        submit(&mut engine, 999, named(0, request(text(900, 30), 20)));
        step(&mut engine, |_| ());
        for id in 0..200 {
            submit(
                &mut engine,
                u64::from(id),
                named(0, request(text(id, 40), 9)),
            );
        }
        submit(&mut engine, 500, request(text(500, 9), 9));
        assert_eq!(step_opens(&mut engine), [vec![], vec![500]]);
    }
}

#[test]
fn nobody_overtakes_into_a_full_dp_rank() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        num_pages: 17,
        ..config()
    });
    submit(&mut engine, 1, named(0, request(text(1, 30), 20)));
    submit(&mut engine, 2, named(1, request(text(2, 30), 20)));
    step(&mut engine, |_| ());
    // Request 3 fits nowhere beside them. Requests behind it must not take its place.
    submit(&mut engine, 3, request(text(3, 50), 9));
    submit(&mut engine, 4, named(0, request(text(4, 5), 2)));
    submit(&mut engine, 5, request(text(5, 5), 2));
    let mut order = Vec::new();
    while order.len() < 3 {
        order.extend(step_opens(&mut engine).concat());
    }
    assert_eq!(order[0], 3);
    run(&mut engine);
}

#[test]
fn a_retracted_request_may_go_to_another_dp_rank() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        num_pages: 21,
        overlap: false,
        ..config()
    });
    engine.planner = engine.planner.with_conservativeness(0);
    submit(&mut engine, 1, named(1, request(text(1, 60), 4)));
    submit(&mut engine, 2, named(0, request(text(2, 20), 40)));
    submit(&mut engine, 3, request(text(3, 20), 40));
    submit(&mut engine, 4, request(text(4, 20), 40));
    assert_eq!(step_opens(&mut engine), [vec![2, 3], vec![1]]);
    let mut moved = false;
    while !engine.planner.is_idle() {
        let opens = step_opens(&mut engine);
        moved |= opens[1].contains(&3) || opens[1].contains(&4) && opens[0].is_empty();
        engine.planner.check_integrity().unwrap();
    }
    assert!(moved && engine.planner.load().counters.retractions > 0);
    for id in [2, 3, 4] {
        assert_eq!(tokens(&engine, id).len(), 40);
    }
}

#[test]
fn the_least_important_requests_of_all_dp_ranks_are_displaced() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 1,
        priority_scheduling: true,
        ..config()
    });
    let with = |priority, request| Request {
        priority,
        ..request
    };
    submit(&mut engine, 1, with(5, named(0, request(text(1, 5), 20))));
    submit(&mut engine, 2, with(0, named(1, request(text(2, 5), 20))));
    step(&mut engine, |_| ());
    submit(&mut engine, 3, with(30, request(text(3, 5), 20)));
    assert_eq!(step_opens(&mut engine), [vec![], vec![3]]);
    // The other request goes now, because the new one names its DP rank.
    submit(&mut engine, 4, with(30, named(0, request(text(4, 5), 20))));
    assert_eq!(step_opens(&mut engine), [vec![4], vec![]]);
    assert_eq!(engine.planner.load().counters.preemptions, 2);
    run(&mut engine);
}

/// Room in a DP rank where a request may not run is of no use to it.
#[test]
fn who_names_a_dp_rank_displaces_there_though_others_have_room() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 1,
        priority_scheduling: true,
        ..config()
    });
    submit(&mut engine, 1, named(0, request(text(1, 5), 20)));
    step(&mut engine, |_| ());
    let urgent = Request {
        priority: 30,
        ..named(0, request(text(2, 5), 20))
    };
    submit(&mut engine, 2, urgent);
    assert_eq!(step_opens(&mut engine)[0], [2]);
    assert_eq!(engine.planner.load().counters.preemptions, 1);
    run(&mut engine);
}

/// Only DP ranks that admit requests decide which ones are too busy to be chosen for a prefix.
/// A full one has few requests and admits none all the same.
#[test]
fn a_full_dp_rank_makes_no_other_look_busy() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 3,
        max_running_requests: 16,
        chunked_prefill_size: Some(512),
        ..config()
    });
    submit(&mut engine, 100, named(0, request(text(1, 16), 1)));
    run(&mut engine);
    let running = [(0, 8), (1, 2), (2, 6)];
    for (dp_rank, count) in running {
        for at in 0..count {
            let id = 10 * dp_rank + at;
            let len = if dp_rank == 1 { 100 } else { 5 };
            let own = named(dp_rank, request(text(200 + 17 * id, len), 20));
            submit(&mut engine, u64::from(id), own);
        }
    }
    step(&mut engine, |_| ());
    let loads = engine.planner.dp_rank_loads();
    let counts: Vec<_> = loads.iter().map(|load| load.running_requests).collect();
    assert_eq!(counts, running.map(|(_, count)| count));
    // Request 50 fits nowhere beside the two, and no other overtakes it.
    submit(&mut engine, 50, named(1, request(text(900, 100), 20)));
    let longer = [text(1, 16), text(500, 5)].concat();
    submit(&mut engine, 51, request(longer, 20));
    assert_eq!(step_opens(&mut engine), [vec![1], vec![], vec![]]);
    run(&mut engine);
}

/// A depth is decided for the rows of all DP ranks, so a crowd is counted over all of them too.
#[test]
fn a_crowd_is_counted_over_all_dp_ranks() {
    for rows in [[3, 3], [5, 1]] {
        let mut engine = engine(&PlannerConfig {
            dp_size: 2,
            max_running_requests: 8,
            overlap: false,
            reserve: ReserveConfig {
                steps: 3,
                topk: 1,
                draft_tokens: 4,
            },
            initial_depth: 3,
            adapts: true,
            ..config()
        });
        for (dp_rank, count) in (0..).zip(rows) {
            for at in 0..count {
                let id = 10 * dp_rank + at;
                let own = named(dp_rank, request(text(40 * id, 5), 40));
                submit(&mut engine, u64::from(id), own);
            }
        }
        let mut drafts = Vec::new();
        for _ in 0..4 {
            step(&mut engine, |plan| drafts.push(plan.draft_steps));
        }
        // First no row decodes; then six do, after a decision for one; then six, after a
        // decision for six.
        assert_eq!(drafts, [3, 0, 3, 3], "{rows:?}");
    }
}

/// The expected memory of one DP rank's requests falls only with that DP rank's own steps.
#[test]
fn an_idle_dp_rank_stays_as_careful_as_it_was() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        num_pages: 1 + 760 / 4,
        context_length: 1100,
        overlap: false,
        ..config()
    });
    submit(&mut engine, 1, named(0, request(text(1, 10), 700)));
    run(&mut engine);
    // The first request wants about 0.7 of 700 tokens, and with the second request's tokens too
    // many.
    for (dp_rank, together) in [(0, 2), (1, 1)] {
        let ids = [2, 3].map(|id| id + 10 * u64::from(dp_rank));
        for (id, tokens) in ids.into_iter().zip([700, 390]) {
            let own = text(30 * id as u32, 10);
            submit(&mut engine, id, named(dp_rank, request(own, tokens)));
        }
        let opens = step_opens(&mut engine);
        assert_eq!(opens[dp_rank as usize].len(), together);
        for id in ids {
            engine.planner.abort(RequestId(id));
        }
    }
}

/// A request for which a slot is free takes no place in the queue. The slot of another DP rank
/// does not count for a request that names its own.
#[test]
fn places_of_the_queue_are_for_those_that_no_free_slot_waits_for() {
    let fresh = || {
        let mut engine = engine(&PlannerConfig {
            dp_size: 2,
            max_running_requests: 2,
            max_queued_requests: 1,
            ..config()
        });
        for id in [1, 2] {
            submit(&mut engine, id, named(0, request(text(id as u32, 5), 40)));
        }
        step(&mut engine, |_| ());
        engine
    };
    // DP rank 0 is full, and two slots are free in DP rank 1. Each entry has the DP rank that a
    // request names, and true if the request is accepted.
    for requests in [
        vec![
            (Some(0), true),
            (Some(0), false),
            (None, true),
            (Some(1), true),
        ],
        vec![(None, true), (None, true), (None, true), (None, false)],
        vec![
            (Some(1), true),
            (Some(1), true),
            (Some(1), true),
            (Some(0), false),
        ],
        vec![
            (Some(0), true),
            (None, true),
            (None, true),
            (None, false),
            (Some(1), false),
        ],
    ] {
        let mut engine = fresh();
        for (at, (names, taken)) in (10..).zip(&requests) {
            let request = Request {
                data_parallel_rank: *names,
                ..request(text(at as u32 * 20, 5), 4)
            };
            let found = engine.planner.submit(Millis(0), RequestId(at), request);
            assert_eq!(found.is_ok(), *taken, "{at} of {requests:?}");
            if let Err(error) = found {
                assert!(error.message.contains("--max-queued-requests"), "{error:?}");
            }
        }
        engine.planner.check_integrity().unwrap();
        run(&mut engine);
    }
}

/// A request that waits for one DP rank alone counts in that DP rank's load.
#[test]
fn what_waits_is_told_where_it_is_bound() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        max_running_requests: 1,
        ..config()
    });
    for id in [1, 2] {
        let request = request(text(id as u32, 5), 20);
        submit(&mut engine, id, named(id as u32 - 1, request));
    }
    step(&mut engine, |_| ());
    submit(&mut engine, 3, request(text(3, 50), 9));
    submit(&mut engine, 4, named(1, request(text(4, 7), 9)));
    submit(&mut engine, 5, named(1, request(text(5, 9), 9)));
    let waiting = |engine: &SimEngine| {
        let loads = engine.planner.dp_rank_loads().into_iter();
        let of = |load: DpRankLoad| {
            (
                load.waiting_requests,
                load.waiting_tokens,
                load.retracted_requests,
            )
        };
        loads.map(of).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&engine), [(0, 0, 0), (2, 16, 0)]);
    assert_eq!(engine.planner.load().waiting_requests, 3);
    run(&mut engine);
    assert_eq!(waiting(&engine), [(0, 0, 0); 2]);
}

/// A retracted request counts in the load of the DP rank where it ran: most of its prefix is
/// there.
#[test]
fn what_was_retracted_is_told_where_it_ran() {
    let mut engine = engine(&PlannerConfig {
        dp_size: 2,
        num_pages: 21,
        overlap: false,
        ..config()
    });
    engine.planner = engine.planner.with_conservativeness(0);
    submit(&mut engine, 1, named(0, request(text(1, 60), 4)));
    for id in [2, 3] {
        submit(&mut engine, id, named(1, request(text(id as u32, 20), 40)));
    }
    submit(&mut engine, 4, request(text(4, 20), 40));
    let mut seen = false;
    while !engine.planner.is_idle() {
        step(&mut engine, |_| ());
        let loads = engine.planner.dp_rank_loads();
        let retracted: Vec<_> = loads.iter().map(|load| load.retracted_requests).collect();
        assert_eq!(
            retracted.iter().sum::<u32>(),
            engine.planner.retracted_requests()
        );
        seen |= retracted[1] > 0;
    }
    assert!(seen);
}

/// Clients are told the DP rank where their requests ran; `None` if the request never ran, or
/// if there is only one.
#[test]
fn outputs_tell_the_dp_rank_that_they_came_from() {
    for (dp_size, of_the_first) in [(2, Some(1)), (1, None)] {
        let mut engine = engine(&PlannerConfig {
            dp_size,
            max_running_requests: 1,
            ..config()
        });
        let last = dp_size - 1;
        submit(&mut engine, 1, named(last, request(text(1, 5), 3)));
        submit(&mut engine, 2, named(last, request(text(2, 5), 3)));
        step(&mut engine, |_| ());
        engine.planner.abort(RequestId(2));
        run(&mut engine);
        engine.outputs.extend(engine.planner.take_outputs());
        for (id, dp_rank, outputs) in [(1, of_the_first, 3), (2, None, 1)] {
            let own = engine.outputs.iter();
            let own = own.filter(|(of, _)| *of == RequestId(id));
            let told: Vec<_> = own.map(|(_, output)| output.dp_rank).collect();
            assert_eq!(told, vec![dp_rank; outputs], "{id} of {dp_size}");
        }
    }
}

#[test]
fn books_of_all_dp_ranks_add_up() {
    let mut engine = dp_engine(2);
    submit(&mut engine, 1, named(0, request(text(1, 16), 9)));
    submit(&mut engine, 2, named(1, request(text(2, 32), 9)));
    step(&mut engine, |_| ());
    let load = engine.planner.load();
    assert_eq!(load.running_requests, 2);
    assert_eq!(load.kv_tokens_total, 2 * 64 * 4);
    assert_eq!(load.kv_tokens_used, 16 + 32);
    let loads = |engine: &SimEngine| engine.planner.dp_rank_loads();
    let used: Vec<_> = loads(&engine)
        .iter()
        .map(|load| {
            (
                load.running_requests,
                load.kv_tokens_used,
                load.kv_tokens_total,
            )
        })
        .collect();
    assert_eq!(used, [(1, 16, 64 * 4), (1, 32, 64 * 4)]);
    run(&mut engine);
    submit(&mut engine, 3, named(1, request(text(2, 32), 5)));
    run(&mut engine);
    let counters: Vec<_> = loads(&engine).iter().map(|load| load.counters).collect();
    let expected = |prompt_tokens, cached_tokens, generated_tokens| DpRankCounters {
        prompt_tokens,
        cached_tokens,
        generated_tokens,
        retractions: 0,
    };
    assert_eq!(counters, [expected(16, 0, 9), expected(64, 28, 14)]);
    let cached = engine.planner.load().kv_tokens_cached;
    assert_eq!(engine.planner.flush_cache(), Ok(cached));
    assert_eq!(engine.planner.load().kv_tokens_cached, 0);
}

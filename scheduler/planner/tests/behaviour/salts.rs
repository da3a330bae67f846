//! Tests of salts: requests of different salts share nothing in the prefix cache, and nothing
//! that depends on it tells one of the other.

use lockstep_planner::{CacheEvent, PlannerConfig};
use lockstep_types::{
    SchedulePolicy,
    request::{CACHE_SALT_BYTES, ErrorKind},
};

use super::*;

fn salted(salt: Option<&str>, request: Request) -> Request {
    Request {
        cache_salt: salt.map(str::to_owned),
        ..request
    }
}

#[test]
fn only_the_same_salt_finds_a_prompt_again() {
    for (first, second, cached) in [
        (None, None, 36),
        (Some("a"), Some("a"), 36),
        (Some("a"), Some("b"), 0),
        (Some("a"), None, 0),
        (None, Some("a"), 0),
    ] {
        let mut engine = engine(&config());
        for (id, salt) in [(1, first), (2, second)] {
            submit(&mut engine, id, salted(salt, request(prompt(1, 40), 1)));
            run(&mut engine);
        }
        let usage = finish(&engine, 2).usage;
        assert_eq!(usage.cached_tokens, cached, "{first:?} {second:?}");
    }
}

/// Two salts take the pages of two requests, and the oldest go first whatever their salt.
#[test]
fn pages_of_all_salts_are_evicted_alike() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 20,
        ..config()
    });
    let ask = |engine: &mut SimEngine, id, salt: &str| {
        submit(engine, id, salted(Some(salt), request(prompt(1, 40), 1)));
        run(engine);
        finish(engine, id).usage.cached_tokens
    };
    assert_eq!(ask(&mut engine, 1, "a"), 0);
    // The second salt's ten pages beside the first's are all that there are.
    assert_eq!(ask(&mut engine, 2, "b"), 0);
    assert_eq!(engine.planner.load().kv_tokens_cached, 80);
    assert_eq!(ask(&mut engine, 3, "c"), 0);
    assert_eq!(ask(&mut engine, 4, "b"), 36);
    assert_eq!(ask(&mut engine, 5, "a"), 0);
}

#[test]
fn nobody_waits_for_a_prefix_of_another_salt() {
    let mut engine = engine(&PlannerConfig {
        chunked_prefill_size: Some(256),
        ..config()
    });
    for (id, salt) in [(1, "a"), (2, "b"), (3, "a")] {
        let ids = [prompt(99, 40), prompt(id, 8)].concat();
        submit(&mut engine, id, salted(Some(salt), request(ids, 4)));
    }
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 2));
    run(&mut engine);
    assert_eq!(finish(&engine, 2).usage.cached_tokens, 0);
    assert_eq!(finish(&engine, 3).usage.cached_tokens, 40);
}

#[test]
fn the_longest_prefix_is_one_of_the_same_salt() {
    for (salt, first) in [("a", 3), ("b", 2)] {
        let mut engine = engine(&PlannerConfig {
            max_running_requests: 1,
            schedule_policy: SchedulePolicy::Lpm,
            ..config()
        });
        submit(&mut engine, 1, salted(Some("a"), request(prompt(1, 20), 1)));
        run(&mut engine);
        submit(&mut engine, 2, request(prompt(2, 20), 1));
        submit(
            &mut engine,
            3,
            salted(Some(salt), request(prompt(1, 20), 1)),
        );
        step(&mut engine, |_| {});
        assert_eq!(engine.outputs.last().unwrap().0, RequestId(first), "{salt}");
        run(&mut engine);
    }
}

#[test]
fn a_request_follows_a_prefix_of_its_salt_alone() {
    for (salt, dp_rank) in [("a", 1), ("b", 0)] {
        let mut engine = engine(&PlannerConfig {
            dp_size: 2,
            ..config()
        });
        let first = Request {
            data_parallel_rank: Some(1),
            ..salted(Some("a"), request(prompt(1, 24), 1))
        };
        submit(&mut engine, 1, first);
        run(&mut engine);
        submit(
            &mut engine,
            2,
            salted(Some(salt), request(prompt(1, 30), 1)),
        );
        step(&mut engine, |plan| {
            let opens = plan.parts.iter().map(|part| part.opens.len());
            let expected = [0, 1].map(|at| usize::from(at == dp_rank));
            assert_eq!(opens.collect::<Vec<_>>(), expected, "{salt}");
        });
    }
}

#[test]
fn events_tell_equal_tokens_of_two_salts_apart() {
    let mut engine = engine(&PlannerConfig {
        kv_events: true,
        ..config()
    });
    for (id, salt) in [(1, None), (2, Some("a")), (3, Some("b"))] {
        submit(&mut engine, id, salted(salt, request(prompt(1, 10), 1)));
        run(&mut engine);
    }
    let events = engine.planner.cache_events().flat_map(|(_, events)| events);
    let stored = events.filter_map(|event| match event {
        CacheEvent::BlockStored {
            parent: None,
            blocks,
            cache_salt,
            ..
        } => Some((cache_salt, blocks)),
        _ => None,
    });
    let stored: Vec<_> = stored.collect();
    let salts: Vec<_> = stored.iter().map(|(salt, _)| salt.as_deref()).collect();
    assert_eq!(salts, [None, Some("a"), Some("b")]);
    for (at, (_, blocks)) in stored.iter().enumerate() {
        assert_eq!(blocks[0].token_ids, prompt(1, 10)[..4]);
        for (_, others) in &stored[..at] {
            assert_ne!(blocks[0].hash, others[0].hash);
        }
    }
}

#[test]
fn a_salt_is_short() {
    let mut engine = engine(&config());
    let with = |bytes: usize| salted(Some(&"x".repeat(bytes)), request(prompt(1, 5), 1));
    let submitted = |engine: &mut SimEngine, id, request| {
        engine.planner.submit(Millis(0), RequestId(id), request)
    };
    assert!(submitted(&mut engine, 1, with(CACHE_SALT_BYTES)).is_ok());
    let error = submitted(&mut engine, 2, with(CACHE_SALT_BYTES + 1)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(error.param.as_deref(), Some("cache_salt"));
}

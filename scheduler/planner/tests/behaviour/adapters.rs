//! Tests of adapters: which prefixes requests of adapters share, and when a place is free.

use lockstep_planner::{CacheEvent, PlannerConfig};
use lockstep_types::adapter::Adapter;

use super::*;

fn adapted(adapter: Option<(u16, u128)>, mut request: Request) -> Request {
    request.generation.adapter = adapter.map(|(place, content)| Adapter { place, content });
    request
}

#[test]
fn only_the_same_content_finds_a_prompt_again() {
    for (first, second, cached) in [
        (Some((0, 7)), Some((0, 7)), 36),
        // The same bytes, loaded into another place.
        (Some((0, 7)), Some((1, 7)), 36),
        // Other bytes under the same name take another place, or later the same one.
        (Some((0, 7)), Some((1, 8)), 0),
        (Some((0, 7)), Some((0, 8)), 0),
        (Some((0, 7)), None, 0),
        (None, Some((0, 7)), 0),
    ] {
        let mut engine = engine(&config());
        for (id, adapter) in [(1, first), (2, second)] {
            submit(&mut engine, id, adapted(adapter, request(prompt(1, 40), 1)));
            run(&mut engine);
        }
        let usage = finish(&engine, 2).usage;
        assert_eq!(usage.cached_tokens, cached, "{first:?} {second:?}");
    }
}

#[test]
fn a_place_is_free_when_its_last_request_has_ended() {
    let mut engine = engine(&PlannerConfig {
        max_running_requests: 1,
        ..config()
    });
    let requests = |engine: &SimEngine| [0, 1, 2].map(|at| engine.planner.adapter_requests(at));
    assert_eq!(requests(&engine), [0; 3]);
    for (id, adapter) in [(1, Some((1, 7))), (2, Some((1, 7))), (3, None)] {
        submit(&mut engine, id, adapted(adapter, request(prompt(id, 9), 4)));
    }
    // A refused request is none of the adapter's.
    let empty = adapted(Some((1, 7)), Request::new(Vec::new(), 1));
    let refused = engine.planner.submit(Millis(0), RequestId(4), empty);
    assert!(refused.is_err());
    assert_eq!(requests(&engine), [0, 2, 0], "waiting ones count");
    step(&mut engine, |_| {});
    engine.planner.abort(RequestId(1));
    assert_eq!(requests(&engine), [0, 1, 0]);
    run(&mut engine);
    assert_eq!(requests(&engine), [0; 3]);
}

/// Nothing holds back requests that have no row of an adapter, and the batch mixes adapters.
#[test]
fn requests_of_all_adapters_run_together() {
    let mut engine = engine(&config());
    for (id, adapter) in [(1, None), (2, Some((0, 7))), (3, Some((1, 8)))] {
        submit(&mut engine, id, adapted(adapter, request(prompt(1, 8), 4)));
    }
    step(&mut engine, |plan| {
        let adapters = plan.parts[0]
            .opens
            .iter()
            .map(|open| open.generation.adapter);
        let places: Vec<_> = adapters.map(|one| one.map(|one| one.place)).collect();
        assert_eq!(places, [None, Some(0), Some(1)]);
    });
    run(&mut engine);
}

#[test]
fn events_tell_equal_tokens_of_two_adapters_apart() {
    let mut engine = engine(&PlannerConfig {
        kv_events: true,
        ..config()
    });
    for (id, adapter) in [(1, None), (2, Some((0, 7))), (3, Some((0, 8)))] {
        submit(&mut engine, id, adapted(adapter, request(prompt(1, 10), 1)));
        run(&mut engine);
    }
    let events = engine.planner.cache_events().flat_map(|(_, events)| events);
    let stored = events.filter_map(|event| match event {
        CacheEvent::BlockStored {
            parent: None,
            blocks,
            adapter,
            ..
        } => Some((adapter, blocks[0].hash)),
        _ => None,
    });
    let stored: Vec<_> = stored.collect();
    let adapters: Vec<_> = stored.iter().map(|(adapter, _)| *adapter).collect();
    assert_eq!(adapters, [None, Some(7), Some(8)]);
    assert!(stored[0].1 != stored[1].1 && stored[1].1 != stored[2].1);
}

//! Tests of recurrent states: which are kept, and which prefixes they serve.

use lockstep_planner::{Load, PlannerConfig};
use lockstep_types::step::StateKeep;

use super::*;

/// Pages of 4 tokens, and `spare` states beyond those of 2 slots.
fn hybrid(spare: u32) -> PlannerConfig {
    PlannerConfig {
        max_running_requests: 2,
        states: 2 + spare,
        num_pages: 1 + 2048 / 4,
        context_length: 1024,
        ..config()
    }
}

/// Runs a request. Returns how many tokens of its prompt the cache served, and its answer.
fn serve(engine: &mut SimEngine, id: u64, prompt: &[u32], max_new_tokens: u32) -> (u32, Vec<u32>) {
    submit(engine, id, request(prompt.to_vec(), max_new_tokens));
    run(engine);
    (finish(engine, id).usage.cached_tokens, tokens(engine, id))
}

fn states(load: &Load) -> [u64; 3] {
    [
        load.kv_states_used,
        load.kv_states_cached,
        load.kv_states_total,
    ]
}

/// A request with the same prompt continues at the end of that prompt, and so does the next turn.
/// The turn after it continues at the last multiple of 64 in the answer.
#[test]
fn ends_of_prompts_and_answers_are_kept() {
    let mut engine = engine(&hybrid(8));
    let first = prompt(1, 42);
    let (cached, answer) = serve(&mut engine, 1, &first, 100);
    assert_eq!(cached, 0);
    // 40 and 128: the answer's last token is not computed, so 141 tokens are.
    assert_eq!(states(&engine.planner.load()), [0, 2, 10]);
    assert_eq!(serve(&mut engine, 2, &first, 1).0, 40);
    let turn = [first, answer, prompt(2, 9)].concat();
    assert_eq!(serve(&mut engine, 3, &turn, 1).0, 128);
    assert_eq!(serve(&mut engine, 4, &turn, 1).0, 148);
    // An answer that does not reach a multiple of 64 leaves no state.
    let short = prompt(3, 20);
    let (_, answer) = serve(&mut engine, 5, &short, 40);
    let turn = [short, answer, prompt(4, 9)].concat();
    assert_eq!(serve(&mut engine, 6, &turn, 1).0, 16);
}

/// The second text with a stem shows where the paths part; the third goes on from there.
#[test]
fn a_stem_is_served_when_it_is_seen_for_the_third_time() {
    let mut engine = engine(&hybrid(8));
    let with = |id| [prompt(9, 50), prompt(id, 20)].concat();
    assert_eq!(serve(&mut engine, 1, &with(1), 4).0, 0);
    assert_eq!(serve(&mut engine, 2, &with(2), 4).0, 0);
    assert_eq!(serve(&mut engine, 3, &with(3), 4).0, 48);
    let counters = engine.planner.load().counters;
    let by_kind = [
        counters.cached_full_tokens,
        counters.cached_window_tokens,
        counters.cached_state_tokens,
        counters.cached_tokens,
    ];
    assert_eq!(by_kind, [96, 96, 48, 48]);
}

/// A prompt cut into chunks has its copy in the chunk that passes the position. Requests that come
/// meanwhile wait for it.
#[test]
fn a_copy_is_asked_for_in_the_row_that_passes_it() {
    let mut engine = engine(&PlannerConfig {
        overlap: false,
        ..hybrid(8)
    });
    let long = prompt(1, 70);
    submit(&mut engine, 1, request(long.clone(), 3));
    let keeps = |plan: &StepPlan| plan.parts[0].extends[0].keeps.clone();
    let mut found = Vec::new();
    for _ in 0..3 {
        step(&mut engine, |plan| found.push(keeps(plan)));
    }
    let at = |position, state| vec![StateKeep { position, state }];
    assert_eq!(found, [vec![], vec![], at(68, 1)]);
    submit(&mut engine, 2, request([long, prompt(2, 5)].concat(), 3));
    step(&mut engine, |plan| {
        let open = &plan.parts[0].opens[0];
        assert_eq!((open.state, open.restore), (Some(2), Some(1)));
        assert_eq!(open.cached_len, 68);
    });
    run(&mut engine);
}

/// No state is left for copies, and every request runs.
#[test]
fn without_spare_states_nothing_is_cached() {
    let mut engine = engine(&hybrid(0));
    for id in 0..6 {
        submit(&mut engine, id, request(prompt(1, 42), 100));
    }
    run(&mut engine);
    assert!((0..6).all(|id| finish(&engine, id).usage.cached_tokens == 0));
    assert_eq!(states(&engine.planner.load()), [0, 0, 2]);
}

/// A state goes and its pages stay; then the pages go, and their states with them.
#[test]
fn states_are_evicted_alone_and_with_their_blocks() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 80,
        context_length: 256,
        ..hybrid(2)
    });
    let (short, long) = (prompt(1, 10), prompt(2, 100));
    serve(&mut engine, 1, &short, 1);
    serve(&mut engine, 2, &long, 1);
    assert_eq!(states(&engine.planner.load()), [0, 2, 4]);
    // Two requests run at once. The copy of the first takes the place of the state that saves
    // less; the other one saves more than the copy of the second would.
    for id in [3, 4] {
        submit(&mut engine, id, request(prompt(id, 9), 2));
    }
    run(&mut engine);
    assert_eq!(serve(&mut engine, 5, &short, 1).0, 0);
    let before = engine.planner.load().counters;
    assert_eq!(before.cached_full_tokens, 8, "its pages are there");
    assert_eq!(serve(&mut engine, 6, &long, 1).0, 96);
    // All pages are wanted.
    serve(&mut engine, 7, &prompt(7, 250), 1);
    assert_eq!(serve(&mut engine, 8, &long, 1).0, 0);
    engine.planner.flush_cache().unwrap();
    assert_eq!(states(&engine.planner.load())[..2], [0, 0]);
}

/// A request that waits for pages takes no state, not even the one that it would go on from.
#[test]
fn a_request_that_waits_for_pages_evicts_no_state() {
    let mut engine = engine(&PlannerConfig {
        num_pages: 1 + 42,
        context_length: 128,
        ..hybrid(1)
    });
    let stem = prompt(1, 42);
    serve(&mut engine, 1, &stem, 1);
    // It takes most pages, and the state of its prompt saves more than the stem's.
    submit(&mut engine, 2, request(prompt(2, 61), 60));
    for _ in 0..6 {
        assert!(engine.turn(Millis(0)).unwrap());
    }
    assert_eq!(states(&engine.planner.load()), [1, 2, 3]);
    let turn = [stem, prompt(3, 9)].concat();
    submit(&mut engine, 3, request(turn, 60));
    for _ in 0..3 {
        assert!(engine.turn(Millis(0)).unwrap());
        let load = engine.planner.load();
        assert_eq!(load.waiting_requests, 1, "there are no pages");
        assert_eq!(states(&load), [1, 2, 3]);
    }
    run(&mut engine);
    assert_eq!(finish(&engine, 3).usage.cached_tokens, 40);
}

/// Nobody waits for the prefix that another request computes if no copy of its state can be kept:
/// because there are only the slots' own, or because outputs hold all others.
#[test]
fn nobody_waits_for_a_copy_that_cannot_be_kept() {
    let mut engine = engine(&PlannerConfig {
        max_running_requests: 3,
        states: 3,
        chunked_prefill_size: Some(34),
        ..hybrid(0)
    });
    submit_twins(&mut engine, 1);
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 2));
    run(&mut engine);

    let mut engine = self::engine(&PlannerConfig {
        max_running_requests: 3,
        states: 4,
        chunked_prefill_size: Some(35),
        ..hybrid(0)
    });
    submit(&mut engine, 1, request(prompt(1, 10), 200));
    for _ in 0..80 {
        step(&mut engine, |_| {});
    }
    assert_eq!(states(&engine.planner.load()), [2, 1, 4]);
    submit_twins(&mut engine, 2);
    step(&mut engine, |plan| assert_eq!(plan.parts[0].opens.len(), 2));
    run(&mut engine);
}

/// Submits two requests of the same prompt, which is longer than a chunk.
fn submit_twins(engine: &mut SimEngine, id: u64) {
    for id in [id, id + 1] {
        submit(engine, id, request(prompt(9, 70), 3));
    }
}

/// An abort with steps in flight frees all states of the request but that of its prompt, which is
/// cached.
#[test]
fn an_aborted_request_leaves_its_prompt_alone() {
    let mut engine = engine(&hybrid(8));
    let long = prompt(1, 70);
    submit(&mut engine, 1, request(long.clone(), 200));
    for _ in 0..70 {
        assert!(engine.turn(Millis(0)).unwrap());
    }
    while engine.plan() {}
    engine.planner.abort(RequestId(1));
    engine.planner.check_integrity().unwrap();
    run(&mut engine);
    let load = engine.planner.load();
    assert_eq!(load.kv_states_used, 0);
    assert_eq!(serve(&mut engine, 2, &long, 1).0, 68);
}

#[test]
fn every_slot_needs_a_state() {
    let config = PlannerConfig {
        states: 1,
        ..hybrid(0)
    };
    let why = Planner::new(config).unwrap_err().to_string();
    assert!(why.contains("--max-mamba-cache-size"), "{why}");
}

//! Tests of groups of layers with sliding windows: what they free, and what they can still
//! serve.

use lockstep_planner::{DraftKv, PlannerConfig, ReserveConfig};

use super::*;

/// One group that keeps all positions and one with a window, whose pool has the least pages.
fn windowed(window: u32, config: &PlannerConfig) -> PlannerConfig {
    let config = PlannerConfig {
        windows: vec![window],
        ..config.clone()
    };
    PlannerConfig {
        window_pages: config.least_window_pages(),
        ..config
    }
}

fn long(page_size: u32) -> PlannerConfig {
    PlannerConfig {
        max_running_requests: 1,
        page_size,
        num_pages: 1 + 2048 / page_size,
        context_length: 1024,
        chunked_prefill_size: Some(32),
        ..config()
    }
}

/// The pages of a long text stay within a bound, while its other pages grow.
#[test]
fn pages_behind_the_window_go_back() {
    for (page, window) in [(1, 16), (4, 16), (16, 16), (64, 16), (4, 1)] {
        for overlap in [false, true] {
            let config = PlannerConfig {
                overlap,
                radix_cache: false,
                ..long(page)
            };
            let mut engine = engine(&windowed(window, &config));
            submit(&mut engine, 1, request(prompt(1, 400), 300));
            let mut used = Vec::new();
            while engine.turn(Millis(0)).unwrap() {
                engine.planner.check_integrity().unwrap();
                let load = engine.planner.load();
                used.push((load.kv_tokens_used, load.kv_window_tokens_used));
            }
            let most = used.iter().map(|(_, in_window)| *in_window).max().unwrap();
            let (all, last) = *used.iter().rev().find(|(all, _)| *all > 0).unwrap();
            assert!(all >= 690, "{all}");
            // Two chunks in flight, the window, and the pages at the ends.
            assert!(most <= u64::from(64 + window + 4 * page), "{most}");
            assert!(last <= u64::from(window + 4 * page), "{last}");
        }
    }
}

/// The next turn of a conversation goes on where it would without windows, although all earlier
/// pages are gone.
#[test]
fn a_text_is_found_again_at_its_end() {
    for page in [1, 4, 16] {
        for (window, draft_kv) in [
            (1, DraftKv::None),
            (15, DraftKv::None),
            (16, DraftKv::Tokens),
            (17, DraftKv::Pairs),
            (40, DraftKv::Pairs),
        ] {
            let config = PlannerConfig {
                draft_kv,
                reserve: ReserveConfig {
                    steps: 3,
                    topk: 1,
                    draft_tokens: 4,
                },
                ..long(page)
            };
            let found = |config: &PlannerConfig| turns(&mut engine(config));
            let without = found(&config);
            let least = page * ((200 + 55) / page);
            assert!(without.iter().all(|cached| *cached >= least), "{without:?}");
            let with = found(&windowed(window, &config));
            assert_eq!(with, without, "page {page}, window {window}, {draft_kv:?}");
        }
    }
}

/// Runs texts of several lengths and their next turns. Returns the cached tokens of these.
fn turns(engine: &mut SimEngine) -> Vec<u32> {
    let turn = |(round, len)| {
        let first = request(prompt(round, len), 61);
        submit(engine, 2 * round, first.clone());
        run(engine);
        let mut next = first.input_ids;
        next.extend(tokens(engine, 2 * round));
        next.extend(prompt(900 + round, 5));
        submit(engine, 2 * round + 1, request(next, 1));
        run(engine);
        finish(engine, 2 * round + 1).usage.cached_tokens
    };
    let lengths = [200, 201, 207, 208, 215, 216, 217];
    (0..).zip(lengths).map(turn).collect()
}

/// A stem that several prompts share is found at its end, although a text much longer than the
/// pool comes between. When the ends of many texts need its pages, only the pages of its window
/// are gone, and the next prompt that is computed brings them back.
#[test]
fn a_stem_is_found_until_its_window_is_evicted() {
    let stem = |rest: u64| [prompt(3, 120), prompt(1000 + rest, 20)].concat();
    let mut engine = engine(&windowed(16, &long(4)));
    let cached = |engine: &mut SimEngine, id: u64| {
        submit(engine, id, request(stem(id), 4));
        run(engine);
        finish(engine, id).usage.cached_tokens
    };
    assert_eq!([0, 1, 2].map(|id| cached(&mut engine, id)), [0, 120, 120]);
    submit(&mut engine, 3, request(prompt(9, 600), 4));
    run(&mut engine);
    assert_eq!(cached(&mut engine, 4), 120);
    for id in 10..20 {
        submit(&mut engine, id, request(prompt(id, 40), 4));
        run(&mut engine);
    }
    let load = engine.planner.load();
    assert!(load.kv_tokens_cached >= 120 + 600 + 10 * 40);
    assert_eq!(load.counters.evicted_tokens, 0);
    assert_eq!([5, 6, 7].map(|id| cached(&mut engine, id)), [0, 120, 120]);
    engine.planner.flush_cache().unwrap();
    assert_eq!(engine.planner.load().kv_window_tokens_cached, 0);
    assert_eq!(cached(&mut engine, 8), 0);
}

/// Requests whose common prompt was computed twice at once, so that only the first could be
/// cached while they ran, leave both ends: of the prompt, and of each text.
#[test]
fn prompts_computed_side_by_side_are_found_again() {
    let config = PlannerConfig {
        max_running_requests: 4,
        chunked_prefill_size: Some(256),
        ..long(4)
    };
    let mut engine = engine(&windowed(16, &config));
    // They are alike for less than what is worth waiting for.
    let text = |id: u64| [prompt(1, 20), prompt(50 + id, 80)].concat();
    for id in 0..3 {
        submit(&mut engine, id, request(text(id), 60));
    }
    run(&mut engine);
    for id in 0..3 {
        assert_eq!(finish(&engine, id).usage.cached_tokens, 0);
        submit(&mut engine, 10 + id, request(text(id), 1));
        run(&mut engine);
        assert_eq!(finish(&engine, 10 + id).usage.cached_tokens, 96);
    }
}

/// A hit ends where the windows are whole. It needs the last `window - 1` positions, and not
/// one more.
#[test]
fn a_hit_needs_the_window_and_no_more() {
    for (page, window, whole) in [(1, 17, true), (1, 18, false), (4, 17, true), (4, 18, false)] {
        let config = PlannerConfig {
            chunked_prefill_size: Some(4),
            overlap: false,
            ..long(page)
        };
        let mut engine = engine(&windowed(window, &config));
        let pages = engine.planner.config().window_pages - 1;
        submit(&mut engine, 1, request(prompt(1, 64), 1));
        run(&mut engine);
        // Texts of one page each take all pages but those of 16 positions.
        for other in 0..u64::from(pages - 16 / page) {
            submit(
                &mut engine,
                10 + other,
                request(prompt(10 + other, page), 1),
            );
            run(&mut engine);
        }
        let text = [prompt(1, 64), prompt(7, 3)].concat();
        submit(&mut engine, 2, request(text, 1));
        run(&mut engine);
        let found = finish(&engine, 2).usage.cached_tokens;
        assert_eq!(found == 64, whole, "page {page}, window {window}: {found}");
    }
}

#[test]
fn a_pool_that_running_requests_could_exhaust_is_refused() {
    let config = windowed(16, &long(4));
    let fewer = PlannerConfig {
        window_pages: config.window_pages - 1,
        ..config
    };
    let message = fewer.validate().unwrap_err().to_string();
    assert!(message.contains("window_pages"), "{message}");
    assert!(message.contains("--max-running-requests"), "{message}");
    let none = PlannerConfig {
        windows: vec![0],
        ..long(4)
    };
    assert!(none.validate().is_err());
}

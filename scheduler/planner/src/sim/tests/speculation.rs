//! Tests of reserve and prefix keys under speculation, and proofs that these tests would notice
//! a fault in either.

use std::cell::Cell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use super::*;
use crate::{Counters, Load, batch::Grant};

/// All inputs that the reserve depends on.
#[derive(Debug, Clone)]
pub struct Case {
    pub config: PlannerConfig,
    pub requests: Vec<Request>,
    /// Most draft steps of the plans, in turn.
    pub depths: Vec<u32>,
    /// Depths that the workers agree on, step by step.
    pub agreed: Vec<Option<u32>>,
}

prop_compose! {
    fn case()(
        config in config(),
        page_size in prop_oneof![Just(1u32), Just(16), Just(64), 1u32..65],
        reserve in speculative(),
        draft_kv in draft_kv(),
        tokens in 150u32..400,
        requests in prop::collection::vec(request(), 1..20),
        depths in prop::collection::vec(prop_oneof![2 => 0u32..8, 1 => Just(0)], 1..9),
        agreed in prop::collection::vec(prop::option::of(0u32..8), 1..9),
    ) -> Case {
        // The number is chosen so that each DP rank has equally many to do.
        let requests = requests.into_iter().take(9 * config.dp_size as usize);
        let requests = requests.map(|request| among(&config, request)).collect();
        Case {
            config: PlannerConfig {
                max_queued_requests: 100,
                max_queued_tokens: 10_000,
                page_size,
                num_pages: 1 + tokens.div_ceil(page_size),
                reserve,
                draft_kv,
                priority_scheduling: true,
                ..config
            },
            requests,
            depths,
            agreed,
        }
    }
}

/// Returns the next turn of a conversation: prompt, answer and new tokens. In every third
/// request the answer is left out.
fn next_turn(at: usize, request: &Request) -> Request {
    let mut input_ids = request.input_ids.clone();
    if !at.is_multiple_of(3) {
        input_ids.extend(run_alone(MODEL, CONTEXT, request).token_ids);
    }
    input_ids.extend([(at as u32) % MODEL.vocab_size, 1]);
    let mut next = Request {
        input_ids,
        max_new_tokens: 9,
        ..request.clone()
    };
    next.generation.logprobs = LogprobParams::default();
    next
}

/// Turns the worker's configuration into the one that the planner sees.
type Sight = fn(&mut PlannerConfig);

/// The planner sees all.
pub const ALL: Sight = |_| ();

/// Runs all requests at once, and then their next turns, with a worker that writes every slot
/// that it may.
pub fn drive(case: &Case, planner_sees: Sight, grant: Grant) -> Result<Load, String> {
    let of_worker = fitted(&case.config);
    let mut config = of_worker.clone();
    planner_sees(&mut config);
    let planner = Planner::new(config).map_err(|error| error.to_string())?;
    // Every request with a slot is admitted, so that pages run out.
    let mut planner = planner.with_conservativeness(0);
    planner.set_grant(grant);
    let worker = SimGroup::new(&of_worker, MODEL, true).agreeing_on(&case.agreed);
    let mut engine = SimEngine::new(planner, worker);
    let turns = (0..).zip(&case.requests);
    let next = turns.map(|(at, request)| next_turn(at, request)).collect();
    for (round, requests) in (0..).zip([&case.requests, &next]) {
        for (id, request) in (100 * round..).zip(requests) {
            // A request that can never fit is refused; this test is not about that.
            let id = RequestId(id);
            let _ = engine.planner.submit(Millis(0), id, request.clone());
        }
        drain(&mut engine, &case.depths, grant == Grant::Exact)?;
    }
    Ok(engine.planner.load())
}

/// Runs until nothing is left, and checks that nothing is left.
fn drain(engine: &mut SimEngine, depths: &[u32], exact: bool) -> Result<(), String> {
    for depth in depths.iter().cycle() {
        engine.planner.set_draft_steps(*depth);
        let went_on = engine.turn(Millis(0)).map_err(|fault| fault.to_string())?;
        if exact {
            let books = engine.planner.check_integrity();
            books.map_err(|error| error.to_string())?;
        }
        if !went_on {
            break;
        }
    }
    let load = engine.planner.load();
    if !engine.planner.is_idle() || load.kv_tokens_used + load.leaked_pages > 0 {
        return Err(format!("something is left: {load:?}"));
    }
    Ok(())
}

fn run(drive: impl Fn(&Case) -> Result<Load, String>) -> Result<Counters, String> {
    run_cases(1500, drive)
}

/// Runs many cases, always the same ones. Returns the sum of their counters.
pub fn run_cases(
    cases: u32,
    drive: impl Fn(&Case) -> Result<Load, String>,
) -> Result<Counters, String> {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let sum = Cell::new(Counters::default());
    let outcome = runner.run(&case(), |case| {
        let load = drive(&case).map_err(TestCaseError::fail)?;
        let mut all = sum.get();
        all.generated_tokens += load.counters.generated_tokens;
        all.decode_rows += load.counters.decode_rows;
        all.cached_tokens += load.counters.cached_tokens;
        all.cached_full_tokens += load.counters.cached_full_tokens;
        all.cached_state_tokens += load.counters.cached_state_tokens;
        all.retractions += load.counters.retractions;
        sum.set(all);
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(sum.get()),
        Err(TestError::Fail(reason, _)) => Err(reason.to_string()),
        Err(TestError::Abort(reason)) => Err(format!("aborted: {reason}")),
    }
}

#[test]
fn no_write_leaves_the_reserve_and_no_page_leaks() {
    let exact = |case: &Case| drive(case, ALL, Grant::Exact);
    let sum = run(exact).expect("no fault");
    // The cases exercise generation, caching and retraction.
    assert!(sum.generated_tokens > sum.decode_rows + 10_000, "{sum:?}");
    assert!(sum.cached_tokens > 10_000, "{sum:?}");
    assert!(sum.retractions > 100, "{sum:?}");
}

#[test]
fn a_reserve_that_is_too_small_shows() {
    for grant in [Grant::One, Grant::WithoutLag] {
        let short = |case: &Case| drive(case, ALL, grant);
        let fault = run(short).expect_err("writes leave what was granted");
        assert!(fault.contains("writes up to"), "{grant:?}: {fault}");
    }
}

/// Returns the fault that shows when the planner sees less than there is. Requests then share
/// the KV of a drafter that keeps `kept` and pauses for `window` positions.
fn misled(kept: DraftKv, window: Option<u32>, planner_sees: Sight) -> Result<Counters, String> {
    run(|case: &Case| {
        let config = PlannerConfig {
            draft_kv: kept,
            radix_cache: true,
            pause_window: window.unwrap_or(case.config.pause_window),
            ..case.config.clone()
        };
        let case = Case {
            config,
            ..case.clone()
        };
        drive(&case, planner_sees, Grant::Exact)
    })
}

#[test]
fn wrong_prefix_keys_show() {
    // The KV that the drafter keeps, and keys that suffice only for less.
    let none: Sight = |config| config.draft_kv = DraftKv::None;
    let tokens: Sight = |config| config.draft_kv = DraftKv::Tokens;
    for (kept, keys) in [
        (DraftKv::Tokens, none),
        (DraftKv::Pairs, none),
        (DraftKv::Pairs, tokens),
    ] {
        let fault = misled(kept, None, keys).expect_err("a cached prefix is not the request's");
        assert!(fault.contains("draft position"), "{kept:?}: {fault}");
    }
}

/// Text from steps that drafted nothing is shared only if the drafter has taken it in since.
#[test]
fn sharing_what_no_drafter_has_taken_in_shows() {
    let every_step: Sight = |config| config.pause_window = 0;
    let further_back: Sight = |config| config.pause_window += 1;
    for kept in [DraftKv::Tokens, DraftKv::Pairs] {
        for (window, wrong) in [(2, every_step), (2, further_back), (9, every_step)] {
            let fault = misled(kept, Some(window), wrong).expect_err("holes are shared");
            assert!(fault.contains("draft position"), "{kept:?}: {fault}");
        }
        // With larger windows, ends of prompts play a part.
        for window in [2, 8, 12] {
            misled(kept, Some(window), ALL).expect("what is shared was taken in");
        }
    }
}

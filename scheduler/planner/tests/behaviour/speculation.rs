//! Tests of draft steps, of the counts of speculation, and of the KV that is cached.

use lockstep_planner::{DraftKv, PlannerConfig, PlannerError, ReserveConfig};
use lockstep_types::{
    request::{FinishReason, SpeculationUsage},
    step::{SlotOutput, StepResult},
};

use super::*;

fn drafting(draft_kv: DraftKv) -> PlannerConfig {
    PlannerConfig {
        overlap: false,
        reserve: ReserveConfig {
            steps: 3,
            topk: 2,
            draft_tokens: 6,
        },
        draft_kv,
        ..config()
    }
}

type Drafting = fn(DraftKv) -> PlannerConfig;

/// Returns the configuration for chains of as many steps.
fn drafting_chains(draft_kv: DraftKv) -> PlannerConfig {
    let trees = drafting(draft_kv);
    PlannerConfig {
        reserve: ReserveConfig {
            topk: 1,
            draft_tokens: 4,
            ..trees.reserve
        },
        ..trees
    }
}

/// Answers a plan with a made-up result: tokens, draft steps and drafted tokens.
fn answer(engine: &mut SimEngine, tokens: &[u32], depth: u32, drafted: u32) -> StepPlan {
    let plan = engine.planner.plan().expect("there is work");
    let result = StepResult {
        step: plan.step,
        outputs: vec![vec![SlotOutput {
            slot: plan.parts[0].extends[0].slot,
            token_ids: tokens.to_vec(),
            draft_depth: depth,
            draft_tokens: drafted,
            ..SlotOutput::default()
        }]],
        ..StepResult::default()
    };
    engine.planner.complete(Millis(0), result).unwrap();
    engine.outputs.extend(engine.planner.take_outputs());
    engine.planner.check_integrity().unwrap();
    plan
}

/// Returns the request with at most so many draft steps.
fn capped(steps: u32, mut request: Request) -> Request {
    request.generation.max_draft_steps = Some(steps);
    request
}

#[test]
fn plans_carry_the_steps_and_requests_their_own_limit() {
    let mut engine = engine(&drafting(DraftKv::Pairs));
    let limited = capped(1, request(prompt(1, 9), 20));
    submit(&mut engine, 1, limited);
    let plan = answer(&mut engine, &[5], 0, 0);
    assert_eq!(plan.draft_steps, 3);
    assert_eq!(plan.parts[0].opens[0].generation.max_draft_steps, Some(1));
    engine.planner.set_draft_steps(2);
    assert_eq!(answer(&mut engine, &[5, 6], 1, 2).draft_steps, 2);
    engine.planner.set_draft_steps(99);
    assert_eq!(answer(&mut engine, &[7], 0, 0).draft_steps, 3);
    engine.planner.set_draft_steps(0);
    assert_eq!(answer(&mut engine, &[8], 0, 0).draft_steps, 0);
}

#[test]
fn what_is_agreed_in_a_step_is_planned_two_steps_later() {
    let config = PlannerConfig {
        overlap: true,
        initial_depth: 1,
        ..drafting(DraftKv::Pairs)
    };
    let agreed = [Some(3), None, Some(0), Some(2), None, None, Some(9)];
    let mut engine = engine(&config);
    engine.workers = SimGroup::new(&config, MODEL, true).agreeing_on(&agreed);
    submit(&mut engine, 1, request(prompt(1, 9), 60));
    let mut planned = Vec::new();
    let mut follow = |engine: &mut SimEngine, steps: usize| {
        while planned.len() < steps {
            // Two steps are in flight: the result of the first is taken when both are sent.
            while engine.plan() {
                planned.extend(engine.last_plan().map(|plan| plan.draft_steps));
            }
            engine.execute().unwrap();
            engine.complete(Millis(0)).unwrap();
        }
        std::mem::take(&mut planned)
    };
    assert_eq!(follow(&mut engine, 9)[..9], [1, 1, 3, 3, 0, 2, 2, 2, 3]);
    // A new group has agreed on nothing.
    engine.lose_worker();
    engine.planner.restart_engine();
    assert_eq!(follow(&mut engine, 4)[..4], [1, 1, 3, 3]);
}

#[test]
fn each_request_is_told_what_speculation_brought() {
    let mut engine = engine(&drafting(DraftKv::Pairs));
    let mut first = request(prompt(1, 9), 20);
    first.generation.sampling.stop_token_ids = vec![4];
    submit(&mut engine, 1, first);
    answer(&mut engine, &[1], 0, 0);
    answer(&mut engine, &[1, 1, 1, 1], 3, 5);
    answer(&mut engine, &[1], 2, 3);
    // Nothing was proposed, so nothing is verified.
    answer(&mut engine, &[1], 0, 0);
    // The stop token comes second; both drafted tokens were accepted.
    answer(&mut engine, &[2, 4, 9], 2, 4);
    let end = finish(&engine, 1);
    assert_eq!(
        (end.outcome, end.matched_token),
        (Ok(FinishReason::Stop), Some(4))
    );
    assert_eq!(end.usage.completion_tokens, 9);
    let told = SpeculationUsage {
        verify_steps: 3,
        draft_tokens: 12,
        proposed: vec![3, 3, 1],
        accepted: vec![2, 2, 1],
    };
    assert_eq!(end.speculation, Some(told));
    let counted = engine.planner.speculation();
    assert_eq!((counted.verify_steps, counted.draft_tokens), (3, 12));
    assert_eq!((counted.accepted_tokens, counted.wasted_tokens), (5, 7));
    assert_eq!(counted.proposed, [3, 3, 1]);
    assert_eq!(counted.accepted, [2, 2, 1]);
    // A request that never verified anything is told nothing.
    submit(&mut engine, 2, request(prompt(2, 9), 2));
    answer(&mut engine, &[1], 0, 0);
    answer(&mut engine, &[1], 0, 0);
    assert_eq!(finish(&engine, 2).speculation, None);
}

#[test]
fn drafts_of_a_request_that_ended_are_wasted() {
    let mut engine = engine(&PlannerConfig {
        overlap: true,
        ..drafting(DraftKv::Pairs)
    });
    let mut stopped = request(prompt(1, 9), 20);
    stopped.generation.sampling.stop_token_ids = vec![4];
    submit(&mut engine, 1, stopped);
    let plans: Vec<_> = (0..2).map(|_| engine.planner.plan().unwrap()).collect();
    for (plan, depth) in plans.iter().zip([0, 3]) {
        let output = SlotOutput {
            slot: plan.parts[0].extends[0].slot,
            token_ids: vec![4],
            draft_depth: depth,
            draft_tokens: depth,
            ..SlotOutput::default()
        };
        let result = StepResult {
            step: plan.step,
            outputs: vec![vec![output]],
            ..StepResult::default()
        };
        engine.planner.complete(Millis(0), result).unwrap();
    }
    let counted = engine.planner.speculation();
    assert_eq!((counted.verify_steps, counted.wasted_tokens), (1, 3));
    assert_eq!(counted.proposed, [0, 0, 0]);
    engine.planner.check_integrity().unwrap();
}

#[test]
fn drafts_of_a_row_without_a_token_are_wasted() {
    let mut engine = engine(&drafting(DraftKv::Pairs));
    submit(&mut engine, 1, request(prompt(1, 9), 20));
    answer(&mut engine, &[1], 0, 0);
    answer(&mut engine, &[], 2, 3);
    let counted = engine.planner.speculation();
    assert_eq!((counted.verify_steps, counted.wasted_tokens), (1, 3));
    assert_eq!(finish(&engine, 1).usage.completion_tokens, 1);
}

#[test]
fn more_than_was_drafted_is_refused() {
    let mut engine = engine(&drafting(DraftKv::Pairs));
    let limited = capped(2, request(prompt(1, 9), 20));
    submit(&mut engine, 1, limited);
    answer(&mut engine, &[1], 0, 0);
    let plan = engine.planner.plan().unwrap();
    // (tokens, draft steps, drafted tokens)
    for (tokens, depth, drafted) in [
        (2, 0, 0),
        (3, 1, 1),
        (4, 2, 4),
        (1, 3, 3),
        (1, 0, 2),
        (1, 2, 0),
    ] {
        let result = StepResult {
            step: plan.step,
            outputs: vec![vec![SlotOutput {
                slot: 0,
                token_ids: vec![1; tokens],
                draft_depth: depth,
                draft_tokens: drafted,
                ..SlotOutput::default()
            }]],
            ..StepResult::default()
        };
        let error = engine.planner.complete(Millis(0), result).unwrap_err();
        assert!(matches!(error, PlannerError::BadResult { .. }), "{error}");
    }
    assert_eq!(engine.planner.in_flight(), 1, "nothing was taken");
}

#[test]
fn a_pair_is_cached_with_the_token_after_it() {
    for (draft_kv, after_another) in [
        (DraftKv::None, 40),
        (DraftKv::Tokens, 40),
        (DraftKv::Pairs, 36),
    ] {
        let mut engine = engine(&drafting(draft_kv));
        let first = request(prompt(1, 40), 1);
        submit(&mut engine, 1, first.clone());
        run(&mut engine);
        let sampled = tokens(&engine, 1)[0];
        for (id, next, cached) in [(2, sampled, 40), (3, sampled + 1, after_another)] {
            let mut ids = first.input_ids.clone();
            ids.extend([next, 1]);
            submit(&mut engine, id, request(ids, 1));
            run(&mut engine);
            assert_eq!(
                finish(&engine, id).usage.cached_tokens,
                cached,
                "{draft_kv:?}"
            );
        }
    }
}

#[test]
fn what_follows_a_stop_among_accepted_tokens_is_in_no_key() {
    // The KV is that of 7 prompt tokens and 1 more, and of a run of four with the stop token
    // second. Ten tokens are the text, and its last one has no successor.
    for (draft_kv, cached) in [
        (DraftKv::None, 10),
        (DraftKv::Tokens, 10),
        (DraftKv::Pairs, 9),
    ] {
        let mut engine = engine(&PlannerConfig {
            page_size: 1,
            ..drafting_chains(draft_kv)
        });
        let mut stopped = request(prompt(1, 7), 20);
        stopped.generation.sampling.stop_token_ids = vec![4];
        submit(&mut engine, 1, stopped.clone());
        answer(&mut engine, &[1], 0, 0);
        answer(&mut engine, &[2, 4, 8, 9], 3, 3);
        assert_eq!(finish(&engine, 1).usage.completion_tokens, 3);
        let mut ids = stopped.input_ids;
        ids.extend([1, 2, 4, 8, 9]);
        submit(&mut engine, 2, request(ids, 1));
        answer(&mut engine, &[1], 0, 0);
        assert_eq!(
            finish(&engine, 2).usage.cached_tokens,
            cached,
            "{draft_kv:?}"
        );
    }
}

#[test]
fn what_a_draft_model_has_not_read_is_not_shared() {
    // The text without its last token has 11 tokens. The last token of an accepted chain has
    // not been read. Of a tree's tokens only the first has been read.
    let chains: Drafting = drafting_chains;
    for (draft_kv, drafting, cached) in [
        (DraftKv::None, chains, 11),
        (DraftKv::Tokens, chains, 10),
        (DraftKv::Pairs, chains, 11),
        (DraftKv::Tokens, drafting, 8),
        (DraftKv::Pairs, drafting, 11),
    ] {
        let mut engine = engine(&PlannerConfig {
            page_size: 1,
            ..drafting(draft_kv)
        });
        submit(&mut engine, 1, request(prompt(1, 7), 5));
        answer(&mut engine, &[1], 0, 0);
        answer(&mut engine, &[2, 3, 4, 5], 3, 3);
        let mut ids = prompt(1, 7);
        ids.extend([1, 2, 3, 4, 5, 6]);
        submit(&mut engine, 2, request(ids, 1));
        answer(&mut engine, &[1], 0, 0);
        assert_eq!(
            finish(&engine, 2).usage.cached_tokens,
            cached,
            "{draft_kv:?}"
        );
    }
}

/// A drafter takes in the rows of every step that drafts, also those of requests that want no
/// drafts. In a step that drafts for no request it may take in none. A request that drafts then
/// computes these rows again.
#[test]
fn a_request_without_drafts_is_shared_where_the_step_drafts() {
    // Eight tokens of the prompt, and all of the output but its last token.
    for (draft_steps, cached) in [(3, 13), (0, 8)] {
        let mut engine = engine(&PlannerConfig {
            page_size: 1,
            pause_window: 2,
            ..drafting_chains(DraftKv::Pairs)
        });
        let undrafted = capped(0, request(prompt(1, 8), 6));
        submit(&mut engine, 1, undrafted);
        answer(&mut engine, &[1], 0, 0);
        engine.planner.set_draft_steps(draft_steps);
        for token in 2..7 {
            let plan = answer(&mut engine, &[token], 0, 0);
            assert_eq!(plan.draft_steps, draft_steps);
        }
        let again = [prompt(1, 8), vec![1, 2, 3, 4, 5, 6, 7]].concat();
        engine.planner.set_draft_steps(3);
        submit(&mut engine, 2, request(again, 1));
        answer(&mut engine, &[1], 0, 0);
        assert_eq!(finish(&engine, 2).usage.cached_tokens, cached);
    }
}

#[test]
fn a_draft_model_may_leave_a_few_tokens_of_a_prompt_for_later() {
    // The second prompt is longer than its cached part by as many tokens as may be left, or by
    // one more. The third prompt begins with all of the second.
    let chains: Drafting = drafting_chains;
    for (draft_kv, drafting, more, cached) in [
        (DraftKv::None, chains, 1, 9),
        (DraftKv::Tokens, chains, 1, 8),
        (DraftKv::Tokens, chains, 2, 10),
        (DraftKv::Tokens, drafting, 3, 8),
        (DraftKv::Tokens, drafting, 4, 12),
    ] {
        let mut engine = engine(&PlannerConfig {
            page_size: 1,
            ..drafting(draft_kv)
        });
        for (id, len) in [(1, 8), (2, 8 + more), (3, 16)] {
            submit(&mut engine, id, request(prompt(1, len), 1));
            run(&mut engine);
        }
        assert_eq!(finish(&engine, 2).usage.cached_tokens, 8, "{draft_kv:?}");
        let third = finish(&engine, 3).usage.cached_tokens;
        assert_eq!(third, cached, "{draft_kv:?} {more}");
    }
}

/// Runs a request of `len` tokens of one prompt at a depth. Returns the number of cached
/// tokens, and true if the drafter had these too.
fn opened(engine: &mut SimEngine, id: u64, len: u32, depth: u32) -> (u32, bool) {
    engine.planner.set_draft_steps(depth);
    submit(engine, id, request(prompt(1, len), 8));
    let mut open = None;
    step(engine, |plan| open = plan.parts[0].opens.first().cloned());
    run(engine);
    let open = open.expect("it got a slot");
    assert_eq!(open.cached_len, finish(engine, id).usage.cached_tokens);
    (open.cached_len, open.drafted)
}

#[test]
fn what_was_computed_in_a_pause_is_cached_and_opened_as_undrafted() {
    for draft_kv in [DraftKv::None, DraftKv::Tokens, DraftKv::Pairs] {
        let pausing = PlannerConfig {
            pause_window: 16,
            context_length: 400,
            num_pages: 400,
            ..drafting(draft_kv)
        };
        let mut engine = engine(&pausing);
        let has_all = draft_kv == DraftKv::None;
        assert_eq!(opened(&mut engine, 1, 121, 0), (0, true));
        // The tokens without the drafter's KV are more than are computed again.
        assert_eq!(opened(&mut engine, 2, 201, 3), (120, has_all));
        // A request that began without the drafter's first part never gets it.
        assert_eq!(opened(&mut engine, 3, 281, 3), (200, has_all));
    }
}

#[test]
fn a_short_end_that_no_drafter_has_is_computed_again_and_then_drafted() {
    for draft_kv in [DraftKv::Tokens, DraftKv::Pairs] {
        let pausing = PlannerConfig {
            pause_window: 16,
            context_length: 400,
            num_pages: 400,
            ..drafting(draft_kv)
        };
        let mut engine = engine(&pausing);
        assert_eq!(opened(&mut engine, 1, 81, 3), (0, true));
        // 40 more tokens come in a pause: a request that comes in the pause gets them, too.
        assert_eq!(opened(&mut engine, 2, 121, 0), (80, true));
        assert_eq!(opened(&mut engine, 3, 141, 0), (120, false));
        // They are few enough to be computed again when there are drafts.
        assert_eq!(opened(&mut engine, 4, 201, 3), (80, true));
        // The drafter has them now, and the tokens behind them.
        assert_eq!(opened(&mut engine, 5, 281, 3), (200, true));
    }
}

/// If a drafter takes in a prompt later, when the request drafts, other requests can use its KV
/// from then on, not only after the request's end.
#[test]
fn a_prompt_that_the_drafter_takes_in_later_is_noted_while_its_request_runs() {
    for draft_kv in [DraftKv::Tokens, DraftKv::Pairs] {
        let pausing = PlannerConfig {
            pause_window: 256,
            context_length: 400,
            num_pages: 400,
            ..drafting(draft_kv)
        };
        let mut engine = engine(&pausing);
        engine.planner.set_draft_steps(0);
        submit(&mut engine, 1, request(prompt(1, 121), 60));
        (0..5).for_each(|_| step(&mut engine, |_| {}));
        engine.planner.set_draft_steps(3);
        (0..3).for_each(|_| step(&mut engine, |_| {}));
        let ended = engine.outputs.iter().any(|(_, out)| out.finish.is_some());
        assert!(!ended, "the first one still runs");
        assert_eq!(opened(&mut engine, 2, 201, 3), (120, true));
    }
}

#[test]
fn who_opts_out_is_charged_without_speculation() {
    let tight = PlannerConfig {
        num_pages: 1 + 20,
        ..drafting(DraftKv::Pairs)
    };
    let mut engine = engine(&tight);
    let drafts = request(prompt(1, 40), 41);
    let full = capped(0, drafts.clone());
    let error = engine.planner.submit(Millis(0), RequestId(1), drafts);
    assert!(error.unwrap_err().message.contains("--max-total-tokens"));
    submit(&mut engine, 1, full);
    run(&mut engine);
    assert_eq!(tokens(&engine, 1).len(), 41);
}

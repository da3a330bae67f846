//! Tests of the prefix cache: work that is done only once.

use lockstep_planner::{CacheEvent, DraftKv, PlannerConfig, sim::run_alone};
use lockstep_types::request::FinishReason;

use super::*;

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
    stopped.generation.sampling.stop_token_ids = vec![stop];
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
fn what_a_poisoned_request_computed_last_is_not_cached() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(1, 8), 30));
    for _ in 0..6 {
        step(&mut engine, |_| {});
    }
    let plan = engine.planner.plan().unwrap();
    let mut result = engine.workers.execute(&plan).unwrap();
    result.outputs[0][0].token_ids.clear();
    engine.planner.complete(Millis(0), result).unwrap();
    engine.outputs.extend(engine.planner.take_outputs());
    assert!(finish(&engine, 1).outcome.is_err());
    // The prompt was shared when it was computed; five more tokens were not.
    let load = engine.planner.load();
    assert_eq!((load.kv_tokens_cached, load.kv_tokens_used), (8, 0));
    engine.planner.check_integrity().unwrap();
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
            assert_eq!(plan.parts[0].opens.len(), admitted_at_once);
        });
        run(&mut engine);
        let cached = if admitted_at_once == 1 { shared } else { 0 };
        assert_eq!(finish(&engine, 3).usage.cached_tokens, cached);
    }
}

/// Pairs share one position less than tokens do, and that number decides if waiting pays.
#[test]
fn what_is_worth_waiting_for_is_counted_as_it_is_cached() {
    for (draft_kv, shared, admitted_at_once) in [
        (DraftKv::Tokens, 32, 1),
        (DraftKv::Tokens, 31, 2),
        (DraftKv::Pairs, 33, 1),
        (DraftKv::Pairs, 32, 2),
    ] {
        let mut engine = engine(&PlannerConfig {
            page_size: 1,
            num_pages: 257,
            chunked_prefill_size: Some(256),
            draft_kv,
            ..config()
        });
        for id in 1..=2 {
            let ids = [prompt(99, shared), prompt(id, 8)].concat();
            submit(&mut engine, id, request(ids, 4));
        }
        step(&mut engine, |plan| {
            let opens = plan.parts[0].opens.len();
            assert_eq!(opens, admitted_at_once, "{draft_kv:?} {shared}");
        });
        run(&mut engine);
    }
}

#[test]
fn scoring_brings_prompt_logprobs_and_no_token() {
    let mut engine = engine(&config());
    submit(&mut engine, 1, request(prompt(5, 50), 1));
    run(&mut engine);
    for start in [0, 1, 20, 49, 50] {
        let id = 10 + u64::from(start);
        let mut score = request(prompt(5, 50), 0);
        score.generation.logprobs.prompt_start = Some(start);
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

/// A prompt that is only scored may fill the context, because nothing comes after it.
#[test]
fn a_prompt_as_long_as_the_context_is_scored() {
    let context = config().context_length;
    let mut engine = engine(&config());
    let score = |tokens: u32| {
        let mut score = request(prompt(5, tokens), 0);
        score.generation.logprobs.prompt_start = Some(0);
        score
    };
    submit(&mut engine, 1, score(context));
    run(&mut engine);
    let (_, output) = engine.outputs.last().unwrap();
    assert_eq!(output.prompt_logprobs.len() as u32, context);
    for longer in [score(context + 1), request(prompt(5, context), 1)] {
        let refused = engine.planner.submit(Millis(0), RequestId(2), longer);
        assert!(refused.unwrap_err().message.contains("--context-length"));
    }
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
    let only = |mut ranks: Vec<(u32, Vec<CacheEvent>)>| {
        assert_eq!(ranks.len(), 1);
        ranks.remove(0).1
    };
    let events = only(engine.planner.cache_events().collect());
    let CacheEvent::BlockStored {
        parent: None,
        blocks,
        block_size: 4,
        cache_salt: None,
        adapter: None,
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
    assert_eq!(only(engine.planner.cache_snapshot().collect()), events);
    engine.planner.flush_cache().unwrap();
    assert_eq!(
        only(engine.planner.cache_events().collect()),
        [CacheEvent::Cleared]
    );
    assert!(only(engine.planner.cache_snapshot().collect()).is_empty());
}

/// A plan gives one page of each group for each block. A cached prefix brings the pages that it
/// has in each group.
#[test]
fn a_prefix_is_cached_in_all_groups() {
    let mut engine = engine(&PlannerConfig {
        kv_groups: 2,
        overlap: false,
        ..config()
    });
    let pages = |plan: &StepPlan| plan.parts[0].extends[0].new_pages.clone();
    let mut given = Vec::new();
    for id in 0..2 {
        submit(&mut engine, id, request(prompt(5, 12), 1));
        step(&mut engine, |plan| given.push(pages(plan)));
    }
    // The first group hands out its lowest pages first, the second its highest. Of the prompt's
    // three blocks the last one is computed again, for the logits of its last token.
    assert_eq!(given[0], [1, 64, 2, 63, 3, 62]);
    assert_eq!(given[1][..4], [1, 64, 2, 63]);
    assert_eq!(given[1].len(), 6);
    assert_eq!(finish(&engine, 1).usage.cached_tokens, 8);
    engine.planner.check_integrity().unwrap();
    let load = engine.planner.load();
    assert_eq!((load.kv_tokens_cached, load.kv_tokens_total), (12, 256));
}

//! Greedy answers are the goldens, with the same bits in every batch, chunk, page, cache and
//! schedule.
//!
//! The full product of the settings would take minutes. Rows are Taguchi's L9 array instead:
//! over its nine rows every pair of values of two columns meets. The columns are ranks, page
//! size, chunk size and schedule. Each row is answered in a batch and alone, with a cold and
//! with a warm cache. One irregular row per number of ranks adds settings that fit no
//! column. Whole texts are scored on one row per number of ranks, as that takes as long as
//! everything else. These three rows have all values of the other columns.

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::Dtype;
use lockstep_types::{request::Request, sampling::SamplingParams};

use crate::{
    goldens::{Golden, MAX_NEW, goldens},
    reference::{check_greedy, check_prompts, check_texts},
    same::{assert_same, assert_same_logprobs, assert_same_output},
    setup::{Setup, alone, cached, flush, reported, together},
};

const RANKS: [usize; 3] = [1, 2, 4];
const PAGES: [usize; 3] = [1, 16, 64];
const CHUNKS: [Option<i64>; 3] = [None, Some(7), Some(64)];

/// Overlap, longest prefix first, threads of each rank.
const SCHEDULES: [(bool, bool, usize); 3] = [(true, false, 1), (false, false, 1), (true, true, 2)];

/// Prompts answered alone: one of every fourth domain and the longest.
const ALONE: [usize; 6] = [4, 12, 20, 28, 36, 37];

#[test]
fn float32_on_one_rank() {
    rows(Dtype::Float32, 0);
}

#[test]
fn float32_on_two_ranks() {
    rows(Dtype::Float32, 1);
}

#[test]
fn float32_on_four_ranks() {
    rows(Dtype::Float32, 2);
}

#[test]
fn bfloat16_on_one_rank() {
    rows(Dtype::Bfloat16, 0);
}

#[test]
fn bfloat16_on_two_ranks() {
    rows(Dtype::Bfloat16, 1);
}

#[test]
fn bfloat16_on_four_ranks() {
    rows(Dtype::Bfloat16, 2);
}

/// Runs all rows of one number of ranks. The first row's answers are the expected answers of
/// the others.
fn rows(dtype: Dtype, ranks: usize) {
    let plain = Setup::demo(dtype, RANKS[ranks]);
    let regular = (0..3).map(|page| {
        let (overlap, lpm, threads) = SCHEDULES[(ranks + 2 * page) % 3];
        Setup {
            page: PAGES[page],
            chunk: CHUNKS[(ranks + page) % 3],
            overlap,
            lpm,
            threads,
            ..plain.clone()
        }
    });
    let irregular = Setup {
        page: 5,
        chunk: Some(33),
        radix: false,
        running: 3,
        ..plain.clone()
    };
    let mut first = None;
    for setup in regular.chain([irregular]) {
        let answers = row(&setup);
        match &first {
            None => first = Some(answers),
            Some(first) => all_same(&format!("{setup:?}"), &answers, first),
        }
    }
}

/// Runs one engine, with all ways of asking; returns the first answers.
fn row(setup: &Setup) -> Vec<Completion> {
    let mut engine = setup.start();
    let goldens = goldens();
    let what = |round: &str| format!("{round}, {setup:?}");

    let cold = together(&mut engine, requests(&goldens, Some(0)));
    check_greedy(setup.dtype, &cold);
    check_prompts(setup.dtype, &cold);
    assert!(cold.iter().all(|answer| cached(answer) == 0));
    assert_eq!(engine.load().kv_tokens_cached > 0, setup.radix);

    let warm = together(&mut engine, requests(&goldens, None));
    for (i, warm) in warm.iter().enumerate() {
        assert_same_output(&what("warm"), warm, &cold[i]);
        let longest = goldens[i].prompt_ids.len() - 1;
        assert_eq!(cached(warm), cacheable(setup, longest));
    }
    scored_from_the_middle(setup, &mut engine, &goldens, &cold);
    // The rows with this page size meet every chunk size and schedule.
    if setup.page == PAGES[1] {
        scored_texts(setup, &mut engine, &goldens, &cold);
    }
    let some: Vec<_> = ALONE.map(|i| &goldens[i]).into_iter().collect();
    let warm = alone(&mut engine, requests(some.iter().copied(), None));
    for (warm, i) in warm.iter().zip(ALONE) {
        assert_same_output(&what("warm and alone"), warm, &cold[i]);
        let longest = goldens[i].prompt_ids.len() - 1;
        assert_eq!(cached(warm), cacheable(setup, longest));
    }
    for (golden, i) in some.into_iter().zip(ALONE) {
        flush(&mut engine);
        let answer = alone(&mut engine, requests([golden], None)).remove(0);
        assert_same_output(&what("cold and alone"), &answer, &cold[i]);
        assert_eq!(cached(&answer), 0);
    }
    cold
}

/// Checks that the second half of every prompt is scored the same when the first half comes
/// from the cache.
fn scored_from_the_middle(
    setup: &Setup,
    engine: &mut LocalEngine,
    goldens: &[Golden],
    cold: &[Completion],
) {
    let middle = |golden: &Golden| golden.prompt_ids.len() / 2;
    let half = |golden| {
        let start = middle(golden) as u32;
        reported(&golden.prompt_ids, 1, SamplingParams::greedy(), Some(start))
    };
    let found = together(engine, goldens.iter().map(half).collect());
    for (i, found) in found.iter().enumerate() {
        let middle = middle(&goldens[i]);
        let what = format!("half of prompt {i}, {setup:?}");
        let expected = &cold[i].prompt_logprobs[middle..];
        assert_same_logprobs(&what, &found.prompt_logprobs, expected);
        assert_same_logprobs(&what, &found.logprobs, &cold[i].logprobs[..1]);
        // The logits of the token before the middle score the middle.
        assert_eq!(cached(found), cacheable(setup, middle - 1));
    }
}

/// Checks that scoring a text gives the same as generating it.
fn scored_texts(setup: &Setup, engine: &mut LocalEngine, goldens: &[Golden], cold: &[Completion]) {
    let text = |golden: &Golden| {
        let text = [&golden.prompt_ids[..], &golden.output_ids].concat();
        reported(&text, 0, SamplingParams::greedy(), Some(0))
    };
    let found = together(engine, goldens.iter().map(text).collect());
    check_texts(setup.dtype, &found);
    let mut generated = 0;
    for (i, found) in found.iter().enumerate() {
        let what = format!("text {i}, {setup:?}");
        let (prompt, output) = found.prompt_logprobs.split_at(goldens[i].prompt_ids.len());
        assert_same_logprobs(&what, prompt, &cold[i].prompt_logprobs);
        if cold[i].token_ids == goldens[i].output_ids {
            assert_same_logprobs(&what, output, &cold[i].logprobs);
            generated += 1;
        }
    }
    assert!(generated >= goldens.len() / 2, "only {generated} generated");
}

/// Tokens of a prompt in a warm cache, if `longest` tokens of it may be cached.
fn cacheable(setup: &Setup, longest: usize) -> u32 {
    let pages = if setup.radix { longest / setup.page } else { 0 };
    (pages * setup.page) as u32
}

fn requests<'a>(
    goldens: impl IntoIterator<Item = &'a Golden>,
    prompt_start: Option<u32>,
) -> Vec<Request> {
    let request = |golden: &Golden| {
        let greedy = SamplingParams::greedy();
        reported(&golden.prompt_ids, MAX_NEW, greedy, prompt_start)
    };
    goldens.into_iter().map(request).collect()
}

fn all_same(what: &str, found: &[Completion], expected: &[Completion]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_same(&format!("prompt {i}, {what}"), found, expected);
    }
}

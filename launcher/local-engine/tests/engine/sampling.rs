//! A sampled text depends on its seed and on nothing else.

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::{request::Request, sampling::SamplingParams};

use crate::{
    goldens::goldens,
    same::assert_same,
    setup::{Setup, alone, cached, flush, reported, request, together},
};

/// KV tokens: too few for all requests of [`requests`] to run to their ends at once, and
/// enough for each alone.
const TIGHT: usize = 640;

#[test]
fn sampled_texts_in_float32() {
    variants(Dtype::Float32, 1);
}

#[test]
fn sampled_texts_in_bfloat16_on_two_ranks() {
    variants(Dtype::Bfloat16, 2);
}

/// Compares answers alone, in a batch, in chunks, and after retractions.
fn variants(dtype: Dtype, tp: usize) {
    let plain = Setup::demo(dtype, tp);
    let expected = alone(&mut plain.start(), requests());
    let roomy = [
        plain.clone(),
        Setup {
            page: 1,
            chunk: Some(7),
            overlap: false,
            ..plain.clone()
        },
    ];
    for setup in roomy {
        let (answers, retractions) = run(&setup);
        assert_eq!(retractions, 0);
        all_same(&format!("{setup:?}"), &answers, &expected);
    }
    for (page, overlap, radix) in [(16, true, true), (1, false, true), (64, true, false)] {
        let setup = Setup {
            page,
            overlap,
            radix,
            chunk: Some(64),
            tokens: TIGHT,
            context: 256,
            ..plain.clone()
        };
        let (answers, retractions) = run(&setup);
        assert!(retractions > 0, "nothing was retracted, {setup:?}");
        all_same(&format!("{setup:?}"), &answers, &expected);
    }
}

fn run(setup: &Setup) -> (Vec<Completion>, u64) {
    let mut engine = setup.start();
    let answers = together(&mut engine, requests());
    flush(&mut engine);
    (answers, engine.load().counters.retractions)
}

/// Prompts with different ways to sample at temperature 1, long enough to run at the same
/// time.
fn requests() -> Vec<Request> {
    let sampled = |i: usize, prompt: &[u32]| {
        let mut sampling = SamplingParams {
            seed: 1000 + i as u64,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        match i % 4 {
            0 => {}
            1 => sampling.top_p = 0.9,
            2 => sampling.top_k = 40,
            _ => {
                sampling.min_p = 0.01;
                sampling.repetition_penalty = 1.2;
                sampling.frequency_penalty = 0.5;
                sampling.presence_penalty = 0.3;
            }
        }
        let start = i.is_multiple_of(3).then_some(0);
        reported(prompt, 40 + i as u32, sampling, start)
    };
    let prompts = goldens().into_iter().take(20).enumerate();
    prompts
        .map(|(i, golden)| sampled(i, &golden.prompt_ids))
        .collect()
}

fn all_same(what: &str, found: &[Completion], expected: &[Completion]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_same(&format!("request {i}, {what}"), found, expected);
    }
}

/// Seeds of their own make the `n` choices of a prompt differ.
#[test]
fn seeds_make_choices_differ() {
    let prompt = &goldens()[22].prompt_ids;
    let mut engine = Setup::demo(Dtype::Bfloat16, 1).start();
    let seeds = [1, 2, 3, 4, 1, u64::MAX];
    let choice = |seed| {
        let sampling = SamplingParams {
            seed,
            ..SamplingParams::default()
        };
        request(prompt, 32, sampling)
    };
    let answers = together(&mut engine, seeds.map(choice).to_vec());
    for i in 0..seeds.len() {
        for j in 0..i {
            let same = answers[i].token_ids == answers[j].token_ids;
            assert_eq!(same, seeds[i] == seeds[j], "choices {i} and {j}");
        }
    }
}

/// Keys and values from decoding are as good in the cache as those of a prefill.
#[test]
fn second_turns_use_the_first_ones_output() {
    let goldens = goldens();
    let first: Vec<_> = requests().into_iter().step_by(2).collect();
    for (dtype, page, overlap) in [(Dtype::Float32, 1, true), (Dtype::Bfloat16, 16, false)] {
        let setup = Setup {
            page,
            overlap,
            ..Setup::demo(dtype, 1)
        };
        let mut engine = setup.start();
        let answers = together(&mut engine, first.clone());
        let turn = |(i, answer): (usize, &Completion)| {
            let question = &goldens[20 + i].prompt_ids;
            let text = [&first[i].input_ids[..], &answer.token_ids, question].concat();
            reported(&text, 24, SamplingParams::greedy(), None)
        };
        let second: Vec<_> = answers.iter().enumerate().map(turn).collect();
        let warm = together(&mut engine, second.clone());
        flush(&mut engine);
        let cold = alone(&mut engine, second);
        all_same(&format!("{setup:?}"), &warm, &cold);
        for ((warm, first), answer) in warm.iter().zip(&first).zip(&answers) {
            // The last token's KV was never computed.
            let known = first.input_ids.len() + answer.token_ids.len() - 1;
            assert!(cached(warm) as usize >= known / page * page);
        }
    }
}

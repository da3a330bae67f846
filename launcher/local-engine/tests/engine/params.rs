//! Effects of a request's parameters on its answer.

use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_types::Dtype;
use lockstep_types::{
    request::{ErrorKind, FinishReason},
    sampling::{LogprobParams, SamplingParams},
};

use crate::{
    goldens::{Golden, MAX_NEW, goldens},
    setup::{Setup, alone, idle, reported, request, together},
};

/// The demo model's end token.
const EOS: u32 = 2;

fn engine() -> LocalEngine {
    Setup::demo(Dtype::Float32, 1).start()
}

/// The answer to one prompt.
fn answer(golden: &Golden, max_new: u32, sampling: SamplingParams) -> Completion {
    let request = request(&golden.prompt_ids, max_new, sampling);
    alone(&mut engine(), vec![request]).remove(0)
}

fn ended(completion: &Completion, reason: FinishReason, matched: Option<u32>) {
    let finish = completion.finish.as_ref().expect("it ended");
    assert_eq!(finish.outcome, Ok(reason));
    assert_eq!(finish.matched_token, matched);
}

#[test]
fn end_tokens_end_a_text() {
    let golden = &goldens()[0];
    let found = answer(golden, MAX_NEW, SamplingParams::greedy());
    assert_eq!(found.token_ids, golden.output_ids);
    ended(&found, FinishReason::Stop, Some(EOS));

    let found = answer(golden, 5, SamplingParams::greedy());
    assert_eq!(found.token_ids, golden.output_ids[..5]);
    ended(&found, FinishReason::Length, None);

    let exactly = golden.output_ids.len() as u32;
    let found = answer(golden, exactly, SamplingParams::greedy());
    ended(&found, FinishReason::Stop, Some(EOS));
}

#[test]
fn ignore_eos_goes_on() {
    let golden = &goldens()[0];
    let sampling = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    let found = answer(golden, MAX_NEW, sampling);
    assert_eq!(found.token_ids.len(), MAX_NEW as usize);
    assert!(found.token_ids.starts_with(&golden.output_ids));
    ended(&found, FinishReason::Length, None);
}

#[test]
fn stop_tokens_end_a_text() {
    let golden = &goldens()[11];
    let at = 20;
    let stop = golden.output_ids[at];
    let first = golden.output_ids.iter().position(|id| *id == stop).unwrap();
    for ignore_eos in [false, true] {
        let sampling = SamplingParams {
            stop_token_ids: vec![4095, stop],
            ignore_eos,
            ..SamplingParams::greedy()
        };
        let found = answer(golden, MAX_NEW, sampling);
        assert_eq!(found.token_ids, golden.output_ids[..=first]);
        ended(&found, FinishReason::Stop, Some(stop));
    }
}

#[test]
fn no_text_ends_before_min_new_tokens() {
    let golden = &goldens()[4];
    let short = golden.output_ids.len();
    for min in [short as u32, 12, MAX_NEW] {
        let sampling = SamplingParams {
            min_new_tokens: min,
            ..SamplingParams::greedy()
        };
        let found = answer(golden, MAX_NEW, sampling);
        assert!(found.token_ids.len() >= min as usize);
        assert!(!found.token_ids[..min as usize].contains(&EOS));
        assert_eq!(found.token_ids[..short - 1], golden.output_ids[..short - 1]);
    }
    let harmless = SamplingParams {
        min_new_tokens: short as u32 - 1,
        ..SamplingParams::greedy()
    };
    let found = answer(golden, MAX_NEW, harmless);
    assert_eq!(found.token_ids, golden.output_ids);
}

#[test]
fn bias_bans_and_forces_tokens() {
    let golden = &goldens()[0];
    let biased = |token, bias| {
        let sampling = SamplingParams {
            logit_bias: vec![(token, bias)],
            ..SamplingParams::greedy()
        };
        answer(golden, 8, sampling).token_ids
    };
    let [(first, _), (second, _)] = golden.first_top5[..2] else {
        panic!("five alternatives");
    };
    let banned = biased(first, -100.0);
    assert_eq!(banned[0], second);
    assert!(!banned.contains(&first));
    assert_eq!(biased(77, 100.0), [77; 8]);
}

/// Every greedy choice has the largest log-probability minus penalty.
#[test]
fn frequency_and_presence_penalties() {
    let golden = &goldens()[22];
    let unpenalized = answer(golden, MAX_NEW, SamplingParams::greedy());
    for (frequency_penalty, presence_penalty) in [(0.7, 0.0), (0.0, 1.5), (0.4, 0.6), (-2.0, -0.5)]
    {
        let sampling = SamplingParams {
            frequency_penalty,
            presence_penalty,
            ..SamplingParams::greedy()
        };
        let mut request = reported(&golden.prompt_ids, MAX_NEW, sampling, None);
        request.generation.logprobs.top = 256;
        let found = together(&mut engine(), vec![request]).remove(0);
        assert_ne!(found.token_ids, unpenalized.token_ids);
        let mut counts = vec![0u32; 4096];
        for scored in &found.logprobs {
            let value = |(id, logprob): (u32, f32)| {
                let count = counts[id as usize];
                let presence = if count > 0 { presence_penalty } else { 0.0 };
                logprob - frequency_penalty * count as f32 - presence
            };
            let chosen = value((scored.token_id, scored.logprob.unwrap()));
            let best = scored.top.iter().copied().map(value);
            let best = best.fold(f32::MIN, f32::max);
            assert!(chosen >= best - 1e-4, "{chosen} was chosen, {best} is best");
            counts[scored.token_id as usize] += 1;
        }
    }
}

/// This penalty counts the prompt's tokens too, unlike the other two, so it acts at once.
#[test]
fn repetition_penalty_sees_the_prompt() {
    // The prompts are "Goodbye!" and "Give me 7 random numbers ...". The answers' first tokens
    // stand in them.
    let goldens = goldens();
    for golden in [32, 34].map(|i| &goldens[i]) {
        let first = golden.output_ids[0];
        assert!(golden.prompt_ids.contains(&first));
        let penalized = |repetition_penalty| {
            let sampling = SamplingParams {
                repetition_penalty,
                ..SamplingParams::greedy()
            };
            answer(golden, 1, sampling).token_ids[0]
        };
        assert_eq!(penalized(1.0), first);
        assert_ne!(penalized(2.0), first);
    }
}

#[test]
fn narrow_sampling_is_greedy() {
    let golden = &goldens()[1];
    let narrow = [
        (0, 1e-6, 0.0, 1.0),
        (1, 1.0, 0.0, 5.0),
        (0, 1.0, 1.0, 1.0),
        (0, 1.0, 0.0, 1e-6),
    ];
    for (top_k, top_p, min_p, temperature) in narrow {
        let sampling = SamplingParams {
            top_k,
            top_p,
            min_p,
            temperature,
            seed: 5,
            ..SamplingParams::default()
        };
        let found = answer(golden, MAX_NEW, sampling);
        assert_eq!(found.token_ids, golden.output_ids);
    }
}

#[test]
fn alternatives_are_the_most_likely_tokens() {
    let golden = &goldens()[22];
    let mut engine = engine();
    let report = |top, temperature| {
        let sampling = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        let mut request = reported(&golden.prompt_ids, 24, sampling, Some(0));
        request.generation.logprobs.top = top;
        request
    };
    let requests = vec![report(0, 0.0), report(20, 0.0), report(4096, 1.0)];
    let [none, some, all] = &together(&mut engine, requests)[..] else {
        panic!("three answers");
    };
    assert!(none.logprobs.iter().all(|scored| scored.top.is_empty()));
    for scored in &some.logprobs {
        assert_eq!(scored.top.len(), 20);
        assert_eq!(Some(scored.top[0].1), scored.logprob);
        assert_eq!(scored.top[0].0, scored.token_id);
    }
    for scored in all.logprobs.iter().chain(&all.prompt_logprobs[1..]) {
        assert_eq!(scored.top.len(), 4096);
        assert!(scored.top.is_sorted_by(|a, b| a.1 >= b.1));
        let own = (scored.token_id, scored.logprob.unwrap());
        assert!(scored.top.contains(&own));
        let total: f64 = scored.top.iter().map(|top| f64::from(top.1).exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "probabilities sum to {total}");
    }
}

#[test]
fn texts_end_at_the_context_length() {
    let setup = Setup {
        context: 64,
        ..Setup::demo(Dtype::Float32, 1)
    };
    let golden = &goldens()[0];
    let sampling = SamplingParams {
        ignore_eos: true,
        ..SamplingParams::greedy()
    };
    let mut engine = setup.start();
    let asked = request(&golden.prompt_ids, 1000, sampling);
    let found = together(&mut engine, vec![asked]).remove(0);
    assert_eq!(golden.prompt_ids.len() + found.token_ids.len(), 64);
    ended(&found, FinishReason::Length, None);
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let setup = Setup {
        context: 64,
        tokens: 128,
        ..Setup::demo(Dtype::Float32, 1)
    };
    let mut engine = setup.start();
    let greedy = SamplingParams::greedy;
    let mut scored_beyond = reported(&[5, 6], 4, greedy(), Some(3));
    scored_beyond.generation.logprobs.top = 1;
    let negative = SamplingParams {
        temperature: -1.0,
        ..greedy()
    };
    let cases = [
        ("empty", request(&[], 4, greedy())),
        ("too long", request(&[5; 64], 4, greedy())),
        ("not a token", request(&[5, 4096], 4, greedy())),
        ("nothing to do", request(&[5], 0, greedy())),
        ("scored beyond", scored_beyond),
        ("temperature", request(&[5], 4, negative)),
    ];
    for (what, request) in cases {
        let error = engine.submit(request).expect_err(what);
        assert_eq!(error.kind, ErrorKind::Invalid, "{what}: {error}");
    }
    idle(&engine);
    let mut works = request(&[5; 63], 4, greedy());
    works.generation.logprobs = LogprobParams::default();
    assert_eq!(together(&mut engine, vec![works])[0].token_ids.len(), 1);
}

//! Requests of the tests: the goldens, and random requests similar to them.

use lockstep_types::{
    request::Request,
    sampling::{LogprobParams, SamplingParams},
};
use rand::{Rng, SeedableRng as _, rngs::StdRng};

use crate::{
    constraints,
    goldens::{GOLDENS, Golden, MAX_NEW},
    setup::CONTEXT,
};

const VOCABULARY: u32 = 4096;
const MOST_NEW: u32 = 48;

/// A request, and the times of its coming and leaving.
#[derive(Debug, Clone)]
pub struct Job {
    pub request: Request,
    /// Turn at which the request comes.
    pub arrival: usize,
    /// Turns after which its client leaves.
    pub patience: Option<usize>,
}

/// A request for the greedy answer to a golden's prompt, with log-probabilities.
pub fn golden(golden: &Golden) -> Request {
    let mut request = Request::new(golden.prompt_ids.clone(), MAX_NEW);
    request.generation.sampling = SamplingParams::greedy();
    request.generation.logprobs = LogprobParams {
        output: true,
        top: 2,
        prompt_start: None,
    };
    request
}

/// Random requests that come over `turns` turns; some leave early. One seed always gives the
/// same requests.
pub fn random(seed: u64, count: usize, turns: usize) -> Vec<Job> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| job(&mut rng, turns)).collect()
}

fn job(rng: &mut StdRng, turns: usize) -> Job {
    let input_ids = prompt(rng);
    let scored = rng.random_bool(0.04);
    let start =
        (scored || rng.random_bool(0.2)).then(|| rng.random_range(0..input_ids.len()) as u32);
    let mut request = Request::new(input_ids, 0);
    let generation = &mut request.generation;
    generation.sampling = sampling(rng);
    generation.constraint = constraints::some(generation.sampling.seed);
    generation.logprobs = LogprobParams {
        output: rng.random(),
        top: rng.random_range(0..3),
        prompt_start: start,
    };
    if !scored {
        request.max_new_tokens = rng.random_range(1..=MOST_NEW);
    }
    request.priority = pick(rng, &[0, 0, 0, 0, 5, 20]);
    generation.max_draft_steps = pick(
        rng,
        &[None, None, None, None, Some(0), Some(1), Some(2), Some(9)],
    );
    Job {
        request,
        arrival: rng.random_range(0..turns),
        patience: rng.random_bool(0.2).then(|| rng.random_range(0..24)),
    }
}

/// A golden's prompt, whole or cut anywhere, perhaps followed by part of its answer or by
/// meaningless tokens. So prompts share beginnings.
fn prompt(rng: &mut StdRng) -> Vec<u32> {
    let golden = &GOLDENS[rng.random_range(0..GOLDENS.len())];
    let mut ids = golden.prompt_ids.clone();
    match rng.random_range(0..12) {
        0..=2 => {}
        // The outputs of these prompts end with the context.
        3 => {
            let length = rng.random_range(CONTEXT - 20..CONTEXT);
            ids = ids.into_iter().cycle().take(length).collect();
        }
        4..=6 => {
            let answer = rng.random_range(0..golden.output_ids.len().min(20));
            ids.extend(&golden.output_ids[..answer]);
        }
        7..=9 => {
            ids.truncate(rng.random_range(0..ids.len()));
            let own = rng.random_range(1..20);
            ids.extend((0..own).map(|_| rng.random_range(0..VOCABULARY)));
        }
        _ => {
            let length = rng.random_range(1..100);
            ids = (0..length)
                .map(|_| rng.random_range(0..VOCABULARY))
                .collect();
        }
    }
    ids
}

fn sampling(rng: &mut StdRng) -> SamplingParams {
    let penalised = rng.random_bool(0.3);
    let mut penalty = |low: f32, none: f32, high: f32| {
        if penalised {
            rng.random_range(low..high)
        } else {
            none
        }
    };
    let (presence_penalty, frequency_penalty, repetition_penalty) = (
        penalty(-1.0, 0.0, 1.0),
        penalty(-1.0, 0.0, 1.0),
        penalty(0.7, 1.0, 1.5),
    );
    let biased = rng.random_range(0..3);
    let stops = if rng.random_bool(0.2) {
        rng.random_range(1..40)
    } else {
        0
    };
    SamplingParams {
        temperature: pick(rng, &[0.0, 0.0, 0.3, 0.7, 1.0, 1.5]),
        top_p: pick(rng, &[1.0, 1.0, 0.8]),
        top_k: pick(rng, &[0, 0, 20, 1]),
        min_p: pick(rng, &[0.0, 0.0, 0.05]),
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        logit_bias: (0..biased)
            .map(|_| (rng.random_range(0..VOCABULARY), rng.random_range(-5.0..5.0)))
            .collect(),
        seed: rng.random(),
        min_new_tokens: rng.random_range(0..8),
        stop_token_ids: (0..stops)
            .map(|_| rng.random_range(0..VOCABULARY))
            .collect(),
        ignore_eos: rng.random(),
    }
}

fn pick<T: Copy>(rng: &mut StdRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

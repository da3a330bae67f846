//! Answers of the demo model compared with the answers of transformers.

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::sampling::TokenLogprob;

use crate::goldens::{Golden, Scores, goldens, scores};

/// Largest error in float32: logits of magnitude 10 carry rounding of about 1e-6 per
/// operation, and sums in another order than torch's stay well below this.
const FLOAT32_ERROR: f32 = 1e-3;

/// Largest error of a logit, taken from transformers' own bfloat16 run. That run also rounds
/// the residual stream, which the engine keeps in float32.
fn logit_error(dtype: Dtype, scores: &Scores) -> f32 {
    match dtype {
        Dtype::Float32 => FLOAT32_ERROR,
        Dtype::Bfloat16 => scores.bf16_max_logit_error,
    }
}

/// Checks greedy answers to all goldens. In float32 the answers equal the goldens. In
/// bfloat16 an answer may leave its golden where the reference's two largest logits are
/// nearer than twice the error of a logit: both may have moved towards each other.
/// Comparison ends there.
pub fn check_greedy(dtype: Dtype, answers: &[Completion]) {
    let (goldens, scores) = (goldens(), scores());
    assert_eq!(answers.len(), goldens.len());
    let mut compared = 0;
    for (i, answer) in answers.iter().enumerate() {
        let (golden, scores) = (&goldens[i], &scores[i]);
        let same = common(&answer.token_ids, &golden.output_ids);
        if same < golden.output_ids.len().max(answer.token_ids.len()) {
            let gap = scores.top2_logit_gaps[same];
            let clear = 2.0 * logit_error(dtype, scores);
            assert!(
                dtype == Dtype::Bfloat16 && gap <= clear,
                "prompt {i} leaves its golden at {same}, where the gap is {gap}"
            );
        }
        compared += same;
        check_first(dtype, golden, scores, answer);
        let scored = &answer.logprobs[..same];
        check_logprobs(dtype, scores, scored, &scores.output_logprobs[..same]);
    }
    let all: usize = goldens.iter().map(|golden| golden.output_ids.len()).sum();
    assert!(compared * 10 > all * 8, "only {compared} of {all} compared");
}

/// Checks log-probabilities of all prompts, teacher-forced.
pub fn check_prompts(dtype: Dtype, answers: &[Completion]) {
    let scores = scores();
    assert_eq!(answers.len(), scores.len());
    for (answer, scores) in answers.iter().zip(&scores) {
        let (first, rest) = answer.prompt_logprobs.split_first().unwrap();
        assert_eq!(first.logprob, None);
        check_logprobs(dtype, scores, rest, &scores.prompt_logprobs);
    }
}

/// Checks log-probabilities of all prompts with their golden outputs, teacher-forced.
/// Rounding errors have no direction and are small as a rule: a mean error of a twentieth of
/// the largest one allowed is a fault.
pub fn check_texts(dtype: Dtype, answers: &[Completion]) {
    let scores = scores();
    assert_eq!(answers.len(), scores.len());
    let (mut sum, mut count, mut bound) = (0.0, 0, 0.0f32);
    for (answer, scores) in answers.iter().zip(&scores) {
        let expected = [&scores.prompt_logprobs[..], &scores.output_logprobs].concat();
        let found = &answer.prompt_logprobs[1..];
        check_logprobs(dtype, scores, found, &expected);
        let errors = found.iter().zip(&expected);
        sum += errors
            .map(|(found, expected)| (found.logprob.unwrap() - expected).abs())
            .sum::<f32>();
        count += expected.len();
        bound = bound.max(logit_error(dtype, scores));
    }
    let mean = sum / count as f32;
    assert!(mean <= 0.05 * bound, "the mean error is {mean}");
}

/// Checks log-probabilities. Each may be off by the errors of its logit and of the
/// normalizer.
fn check_logprobs(dtype: Dtype, scores: &Scores, found: &[TokenLogprob], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let most = 2.0 * logit_error(dtype, scores);
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found.logprob.unwrap() - expected).abs();
        assert!(error <= most, "position {position} is off by {error}");
    }
}

/// Checks the alternatives of the first output token.
fn check_first(dtype: Dtype, golden: &Golden, scores: &Scores, answer: &Completion) {
    let most = 2.0 * logit_error(dtype, scores);
    let top = &answer.logprobs[0].top;
    assert_eq!(top.len(), golden.first_top5.len());
    for ((id, found), (golden_id, expected)) in top.iter().zip(&golden.first_top5) {
        let error = (found - expected).abs();
        assert!(error <= most, "an alternative is off by {error}");
        if dtype == Dtype::Float32 {
            assert_eq!(id, golden_id);
        }
    }
}

/// Number of tokens that both lists begin with.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

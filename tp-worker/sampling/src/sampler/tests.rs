use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::uniform;

/// Returns the distribution that parameters define, computed in f64 with full sorts: the tokens
/// in the order in which they are drawn, with their probabilities.
fn oracle(
    logits: &[f32],
    params: &SamplingParams,
    prompt: &[u32],
    output: &[u32],
) -> Vec<(u32, f64)> {
    let mut x: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
    for (token, bias) in &params.logit_bias {
        x[*token as usize] += f64::from(*bias);
    }
    for (token, x) in x.iter_mut().enumerate() {
        let count = output.iter().filter(|t| **t as usize == token).count();
        if count > 0 || prompt.contains(&(token as u32)) {
            let penalty = f64::from(params.repetition_penalty);
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        if count > 0 {
            *x -= f64::from(params.frequency_penalty) * count as f64
                + f64::from(params.presence_penalty);
        }
        let masked = params.stop_token_ids.contains(&(token as u32));
        if masked && output.len() < params.min_new_tokens as usize {
            *x = f64::NEG_INFINITY;
        }
    }
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weight = |x: f64| ((x - max) / f64::from(params.temperature)).exp();
    let mut list: Vec<(u32, f64)> = x
        .iter()
        .enumerate()
        .map(|(t, x)| (t as u32, weight(*x)))
        .collect();
    let all = params.top_k == 0 || params.top_k as usize >= x.len();
    if !all || params.top_p < 1.0 {
        list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        list.truncate(if all { x.len() } else { params.top_k as usize });
        let mass = f64::from(params.top_p) * list.iter().map(|t| t.1).sum::<f64>();
        let mut sum = 0.0;
        let kept = list.iter().take_while(|t| {
            let before = sum;
            sum += t.1;
            before < mass
        });
        let kept = kept.count();
        list.truncate(kept);
    }
    list.retain(|t| t.1 >= f64::from(params.min_p) * 0.999_999);
    let total: f64 = list.iter().map(|t| t.1).sum();
    list.iter()
        .map(|(token, weight)| (*token, weight / total))
        .collect()
}

fn history(prompt: &[u32], output: &[u32]) -> TokenHistory {
    let mut history = TokenHistory::default();
    history.reset(prompt);
    output.iter().for_each(|token| history.push(*token));
    history
}

fn params() -> impl Strategy<Value = SamplingParams> {
    (
        (
            0.05f32..3.0,
            prop_oneof![Just(1.0f32), 0.05f32..1.0],
            0u32..40,
        ),
        prop_oneof![Just(0.0f32), 0.0f32..0.5],
        (-2.0f32..2.0, -2.0f32..2.0, 0.5f32..2.0),
        prop::collection::btree_map(0u32..30, -5f32..5.0, 0..4),
        (
            any::<u64>(),
            0u32..6,
            prop::collection::btree_set(0u32..30, 0..4),
        ),
    )
        .prop_map(
            |((temperature, top_p, top_k), min_p, penalties, bias, (seed, min, stops))| {
                SamplingParams {
                    temperature,
                    top_p,
                    top_k,
                    min_p,
                    presence_penalty: penalties.0,
                    frequency_penalty: penalties.1,
                    repetition_penalty: penalties.2,
                    logit_bias: bias.into_iter().collect(),
                    seed,
                    min_new_tokens: min,
                    stop_token_ids: stops.into_iter().collect(),
                    ignore_eos: false,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The drawn token's interval of the oracle's cumulative distribution holds the uniform
    /// number (edges within rounding).
    #[test]
    fn draws_what_the_oracle_draws(
        logits in prop::collection::vec(-8f32..8.0, 30..120),
        params in params(),
        prompt in prop::collection::vec(0u32..30, 0..6),
        output in prop::collection::vec(0u32..30, 0..8),
    ) {
        let history = history(&prompt, &output);
        let position = output.len() as u64;
        let request = Request { params: &params, history: &history, position, allowed: None };
        let mut sampler = Sampler::new(logits.len());
        let token = sampler.sample(&logits, request).unwrap();
        prop_assert_eq!(sampler.sample(&logits, request).unwrap(), token, "not reproducible");
        let point = uniform(params.seed, position, Stream::SAMPLE, 0);
        let distribution = oracle(&logits, &params, &prompt, &output);
        let mut sum = 0.0;
        let found = distribution.iter().any(|(candidate, p)| {
            let low = sum - 1e-4;
            sum += p;
            *candidate == token && (low..sum + 1e-4).contains(&point)
        });
        // If rounding moves a token across the edge of a truncation, the oracle's list may
        // differ by that one token.
        let edge = distribution.len() > 1 && !distribution.iter().any(|(c, _)| *c == token);
        prop_assert!(found || edge && nearly_kept(&logits, &params, &prompt, &output, token),
            "{} at {} in {:?}", token, point, distribution);
    }

    /// The distribution equals the oracle's. Where ids are walked in order, inverting it gives
    /// the drawn token.
    #[test]
    fn the_distribution_is_what_is_drawn_from(
        logits in prop::collection::vec(-8f32..8.0, 30..120),
        params in params(),
        greedy in any::<bool>(),
        prompt in prop::collection::vec(0u32..30, 0..6),
        output in prop::collection::vec(0u32..30, 0..8),
    ) {
        let temperature = if greedy { 0.0 } else { params.temperature };
        let params = SamplingParams { temperature, ..params };
        let history = history(&prompt, &output);
        let position = output.len() as u64;
        let request = Request { params: &params, history: &history, position, allowed: None };
        let mut sampler = Sampler::new(logits.len());
        let mut law = vec![9.0; 3];
        sampler.distribution(&logits, request, &mut law).unwrap();
        prop_assert_eq!(law.len(), logits.len());
        prop_assert!((crate::total(&law) - 1.0).abs() < 1e-5);
        let token = sampler.sample(&logits, request).unwrap();
        prop_assert!(law[token as usize] > 0.0);
        if greedy {
            prop_assert_eq!(law[token as usize], 1.0);
            return Ok(());
        }
        if params.top_k == 0 && params.top_p >= 1.0 {
            let point = uniform(params.seed, position, Stream::SAMPLE, 0);
            prop_assert_eq!(crate::inverse_cdf(&law, point), token);
        }
        let mut expected = vec![0.0; logits.len()];
        for (token, p) in oracle(&logits, &params, &prompt, &output) {
            expected[token as usize] = p;
        }
        let kept = |p: &&f64| **p > 0.0;
        let edge = expected.iter().filter(kept).count() != law.iter().filter(|p| **p > 0.0).count();
        let close = expected.iter().zip(&law).all(|(e, p)| (e - f64::from(*p)).abs() < 1e-5);
        let moved = law.iter().zip(&expected).enumerate().all(|(token, (p, e))| {
            (*p > 0.0) == (*e > 0.0)
                || nearly_kept(&logits, &params, &prompt, &output, token as u32)
        });
        prop_assert!(close || edge && moved, "{:?} {:?}", law, expected);
    }

    /// A constraint is as if the model gave all other tokens no probability. A bias does not
    /// bring them back, and a minimum length gives way.
    #[test]
    fn a_constraint_takes_tokens_away(
        // Whole numbers, so that some are equal.
        logits in prop::collection::vec((-8i8..8).prop_map(f32::from), 30..120),
        params in params(),
        greedy in any::<bool>(),
        allowed in prop::collection::vec(any::<u32>(), 1..5),
        output in prop::collection::vec(0u32..30, 0..8),
    ) {
        let temperature = if greedy { 0.0 } else { params.temperature };
        let params = SamplingParams { temperature, ..params };
        let history = history(&[], &output);
        let position = output.len() as u64;
        let request = Request { params: &params, history: &history, position, allowed: None };
        let constrained = Request { allowed: Some(&allowed), ..request };
        let mut cut = logits.clone();
        for (token, logit) in cut.iter_mut().enumerate() {
            if !crate::allows(&allowed, token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let mut sampler = Sampler::new(logits.len());
        let found = sampler.sample(&logits, constrained);
        match sampler.sample(&cut, request) {
            Ok(token) => prop_assert_eq!(found, Ok(token)),
            Err(_) => prop_assert_eq!(found, Err(SamplingError::Constraint)),
        }
        let (mut law, mut expected) = (Vec::new(), Vec::new());
        let drawn = sampler.distribution(&logits, constrained, &mut law);
        prop_assert_eq!(drawn.is_ok(), found.is_ok());
        let _ = sampler.distribution(&cut, request, &mut expected);
        prop_assert_eq!(law, expected);
    }

    /// No logits, and no parameters within their ranges, cause a panic.
    #[test]
    fn odd_logits_are_defined(
        logits in prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN), Just(0.0)], 40),
        params in params(),
        temperature in prop_oneof![Just(0.0f32), Just(1e-45), Just(1e-20), Just(100.0)],
        penalty in prop_oneof![Just(1e-38f32), Just(2.0)],
    ) {
        let params = SamplingParams { temperature, repetition_penalty: penalty, ..params };
        let history = history(&[0, 1, 2], &[3, 3]);
        let request = Request { params: &params, history: &history, position: 2, allowed: None };
        let bad = logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY)
            || logits.iter().all(|l| *l == f32::NEG_INFINITY);
        prop_assert_eq!(Sampler::new(40).sample(&logits, request).is_err(), bad);
    }
}

/// Returns true if a token joins the oracle's list when the truncation is loosened slightly.
fn nearly_kept(
    logits: &[f32],
    params: &SamplingParams,
    prompt: &[u32],
    output: &[u32],
    token: u32,
) -> bool {
    let loose = SamplingParams {
        top_p: (params.top_p * 1.0001).min(1.0),
        min_p: params.min_p * 0.9999,
        ..params.clone()
    };
    let list = oracle(logits, &loose, prompt, output);
    list.iter().any(|(candidate, _)| *candidate == token)
}

fn draw(logits: &[f32], params: &SamplingParams, position: u64) -> u32 {
    let history = TokenHistory::default();
    let request = Request {
        params,
        history: &history,
        position,
        allowed: None,
    };
    Sampler::new(logits.len()).sample(logits, request).unwrap()
}

/// χ² of 20,000 draws over positions against the oracle's distribution, for every kind of
/// truncation. The 0.01 % points for up to 19 degrees of freedom lie below 50.
#[test]
fn frequencies_follow_the_distribution() {
    let logits: Vec<f32> = (0..20).map(|i| ((i * 7) % 20) as f32 * 0.15).collect();
    let base = SamplingParams {
        seed: 42,
        ..SamplingParams::default()
    };
    for params in [
        base.clone(),
        SamplingParams {
            temperature: 0.5,
            ..base.clone()
        },
        SamplingParams {
            temperature: 2.0,
            top_k: 7,
            ..base.clone()
        },
        SamplingParams {
            top_p: 0.8,
            ..base.clone()
        },
        SamplingParams {
            top_k: 12,
            top_p: 0.9,
            min_p: 0.2,
            ..base.clone()
        },
        SamplingParams {
            min_p: 0.3,
            ..base.clone()
        },
    ] {
        let mut counts = BTreeMap::<u32, f64>::new();
        let draws = 20_000;
        for position in 0..draws {
            *counts.entry(draw(&logits, &params, position)).or_default() += 1.0;
        }
        let distribution = oracle(&logits, &params, &[], &[]);
        let chi2: f64 = distribution
            .iter()
            .map(|(token, p)| {
                let expected = p * draws as f64;
                (counts.remove(token).unwrap_or(0.0) - expected).powi(2) / expected
            })
            .sum();
        assert!(
            counts.is_empty(),
            "tokens outside the distribution: {counts:?}"
        );
        assert!(chi2 < 50.0, "{chi2} for {params:?}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let greedy = SamplingParams::greedy();
    assert_eq!(draw(&[1.0, 3.0, 2.0, 3.0], &greedy, 0), 1);
    let biased = SamplingParams {
        logit_bias: vec![(2, 5.0)],
        ..greedy
    };
    assert_eq!(draw(&[1.0, 3.0, 2.0, 3.0], &biased, 0), 2);
}

#[test]
fn tiny_temperatures_are_greedy() {
    for temperature in [1e-45, 1e-30, 1e-6] {
        for position in 0..100 {
            let params = SamplingParams {
                temperature,
                seed: 9,
                ..SamplingParams::default()
            };
            assert_eq!(draw(&[1.0, 3.0, 2.9], &params, position), 1);
        }
    }
}

#[test]
fn stop_tokens_wait_for_the_minimum_length() {
    let params = SamplingParams {
        min_new_tokens: 2,
        stop_token_ids: vec![1, 3],
        ..SamplingParams::greedy()
    };
    let logits = [0.0, 9.0, 1.0, 9.0];
    assert_eq!(draw(&logits, &params, 0), 2);
    assert_eq!(draw(&logits, &params, 1), 2);
    assert_eq!(draw(&logits, &params, 2), 1);
    let all = SamplingParams {
        stop_token_ids: vec![0, 1, 2, 3],
        ..params
    };
    assert_eq!(
        draw(&logits, &all, 0),
        1,
        "a mask that leaves nothing is not applied"
    );
}

/// Large vocabularies take the same path as small ones.
#[test]
fn top_k_one_is_the_most_likely_token() {
    let logits: Vec<f32> = (0..50_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7)
        .collect();
    let best = draw(&logits, &SamplingParams::greedy(), 0);
    for (top_k, top_p) in [(1, 1.0), (0, 1e-6), (50, 1e-6)] {
        let params = SamplingParams {
            top_k,
            top_p,
            seed: 3,
            ..SamplingParams::default()
        };
        assert_eq!(draw(&logits, &params, 5), best);
    }
}

#[test]
fn a_row_of_the_wrong_width_is_an_error() {
    let (params, history) = (SamplingParams::greedy(), TokenHistory::default());
    let request = Request {
        params: &params,
        history: &history,
        position: 0,
        allowed: None,
    };
    let error = Sampler::new(3).sample(&[0.0; 2], request).unwrap_err();
    assert_eq!(
        error,
        SamplingError::WrongWidth {
            found: 2,
            expected: 3
        }
    );
}

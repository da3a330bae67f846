use proptest::prelude::*;

use super::*;

proptest! {
    /// Equals the textbook formula in f64 and a full sort.
    #[test]
    fn equals_the_naive_log_softmax(
        logits in prop::collection::vec(-40f32..40.0, 1..300),
        pick in any::<prop::sample::Index>(),
        top in 0usize..25,
    ) {
        let token = pick.index(logits.len());
        let got = token_logprob(&logits, token as u32, top).unwrap();
        let normalizer = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let of = |token: usize| f64::from(logits[token]) - normalizer;
        prop_assert!((f64::from(got.logprob.unwrap()) - of(token)).abs() < 1e-5);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(top);
        prop_assert_eq!(got.top.iter().map(|(id, _)| *id as usize).collect::<Vec<_>>(), order);
        for (id, logprob) in got.top {
            prop_assert!((f64::from(logprob) - of(id as usize)).abs() < 1e-5);
        }
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let got = token_logprob(&[1e38, 1e38, -1e38], 0, 3).unwrap();
    assert!((got.logprob.unwrap() - 0.5f32.ln()).abs() < 1e-6);
    assert_eq!(got.top[0].0, 0);
    assert_eq!(got.top[2].1, -2e38);
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    for (logits, token) in [
        ([0.0, f32::NAN], 1),
        ([f32::INFINITY, 0.0], 0),
        ([f32::NEG_INFINITY; 2], 0),
    ] {
        assert_eq!(
            token_logprob(&logits, 0, 1),
            Err(SamplingError::NotFinite { token })
        );
    }
    assert!(token_logprob(&[0.0], 1, 0).is_err());
}

//! From weights and a uniform number to a token: the inverse of a cumulative distribution.

use crate::exp::sum;

/// Number of tokens whose weights are summed at a time.
const BLOCK: usize = 512;

/// Returns the token at `point`, in `[0, 1)`, if tokens take shares of the unit interval in
/// order of their ids and in proportion to `weights`. The weights are not negative and need not
/// sum to 1. If all weights are 0, the token is 0. Example: with weights 1 and 3, token 0 takes
/// `[0, 0.25)` and token 1 the rest.
pub fn inverse_cdf(weights: &[f32], point: f64) -> u32 {
    // Blocks first, then the tokens of one block. Only these need a running sum, which no
    // vector unit helps with.
    let mut target = point * total(weights);
    let mut last = 0..0;
    for start in (0..weights.len()).step_by(BLOCK) {
        let range = start..weights.len().min(start + BLOCK);
        let mass = sum(&weights[range.clone()]);
        if mass > 0.0 {
            last = range;
            if mass > target {
                break;
            }
            target -= mass;
        }
    }
    let ids = last.clone().map(|id| id as u32);
    invert(ids.zip(weights[last].iter().copied()), target)
}

/// `Σ weights`, in one fixed order.
pub fn total(weights: &[f32]) -> f64 {
    weights.chunks(BLOCK).map(sum).sum()
}

/// Returns the first token at which the running sum exceeds `target`, or the last one with
/// weight if rounding leaves none.
fn invert(tokens: impl Iterator<Item = (u32, f32)>, target: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (token, weight) in tokens {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = token;
            if sum > target {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Equals a running sum over all tokens. Integers make sums exact.
        #[test]
        fn equals_one_running_sum(
            weights in prop::collection::vec(prop_oneof![Just(0u16), 0u16..50], 1..2000),
            point in 0.0f64..1.0,
        ) {
            let weights: Vec<f32> = weights.into_iter().map(f32::from).collect();
            let mass: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            prop_assert_eq!(total(&weights), mass);
            let mut sum = 0.0;
            let expected = weights.iter().position(|weight| {
                sum += f64::from(*weight);
                sum > point * mass
            });
            prop_assert_eq!(inverse_cdf(&weights, point), expected.unwrap_or(0) as u32);
        }
    }

    #[test]
    fn never_a_token_without_weight() {
        let just_below_one = 1.0 - f64::EPSILON / 2.0;
        assert_eq!(inverse_cdf(&[0.0, 0.1, 0.2, 0.0], 0.0), 1);
        assert_eq!(inverse_cdf(&[0.0, 0.1, 0.2, 0.0], just_below_one), 2);
        assert_eq!(inverse_cdf(&[0.0; 3], 0.5), 0);
    }
}

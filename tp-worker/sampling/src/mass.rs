//! Weights as whole numbers. Their sums do not depend on an order, so every device that adds
//! them up finds the same token.

/// Number of tokens whose masses are summed at a time.
const BLOCK: usize = 512;
/// The finest unit: 2⁻⁴⁴ of the largest weight.
const MOST_BITS: u32 = 44;

/// The scale of masses. Weights between 0 and 1 become multiples of 2^-[`Self::bits`], to
/// nearest, ties to even. A weight too small for one unit has no mass, and its token is never
/// drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MassScale {
    bits: u32,
    /// A number that rounds a weight to such a multiple when added; the multiple then stands in
    /// the low bits. This is cheaper than a conversion, which few machines have as a vector.
    round: f64,
}

impl MassScale {
    /// Makes the scale of a vocabulary. Its masses sum to less than 2⁶⁴.
    pub fn of(vocab: usize) -> Self {
        let bits = MOST_BITS.min(vocab.max(1).leading_zeros().saturating_sub(1));
        Self {
            bits,
            round: f64::from(52 - bits).exp2(),
        }
    }

    /// Returns the unit's exponent: the unit is 2 to the power of minus this.
    pub fn bits(self) -> u32 {
        self.bits
    }

    pub(crate) fn mass(self, weight: f32) -> u64 {
        (f64::from(weight) + self.round).to_bits() - self.round.to_bits()
    }

    /// Returns `Σ weights`, in units.
    pub(crate) fn sum(self, weights: &[f32]) -> u64 {
        weights.iter().map(|weight| self.mass(*weight)).sum()
    }

    /// Returns the factor that turns weights whose mass is `total` into probabilities.
    pub(crate) fn reciprocal(self, total: u64) -> f32 {
        (f64::from(self.bits).exp2() / total as f64) as f32
    }

    /// Returns the token at place [`at`] of `point` if tokens lie side by side in order of
    /// their ids; 0 if no token has any mass.
    pub(crate) fn invert(self, weights: &[f32], point: u64) -> u32 {
        let mut target = at(point, self.sum(weights));
        for (block, part) in weights.chunks(BLOCK).enumerate() {
            let mass = self.sum(part);
            if mass > target {
                let ids = (block * BLOCK) as u32..;
                let masses = part.iter().map(|weight| self.mass(*weight));
                return first_beyond(ids.zip(masses), target);
            }
            target -= mass;
        }
        0
    }
}

/// Returns the place in `0..total` of a point. A point is a multiple of 2⁻⁵³ (see
/// [`crate::uniform_bits`]). The place is exact except for the last rounding, down.
pub(crate) fn at(point: u64, total: u64) -> u64 {
    ((u128::from(point) * u128::from(total)) >> 53) as u64
}

/// Returns the least mass that is `part` of `total`, at least 1, since there is always a token
/// to keep.
pub(crate) fn share(part: f32, total: u64) -> u64 {
    if part >= 1.0 {
        return total;
    }
    let mass = (f64::from(part) * total as f64).ceil() as u64;
    mass.min(total).max(1)
}

/// Returns the first token at which the running sum exceeds `target`, which is less than the
/// sum of all.
pub(crate) fn first_beyond(tokens: impl Iterator<Item = (u32, u64)>, target: u64) -> u32 {
    let mut sum = 0;
    let mut beyond = tokens.skip_while(|(_, mass)| {
        sum += mass;
        sum <= target
    });
    beyond.next().map_or(0, |(token, _)| token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Equals a running sum over all tokens.
        #[test]
        fn equals_one_running_sum(
            weights in prop::collection::vec(prop_oneof![Just(0f32), 0f32..1.0], 1..2000),
            point in 0u64..1 << 53,
        ) {
            let scale = MassScale::of(weights.len());
            let total: u128 = weights.iter().map(|w| u128::from(scale.mass(*w))).sum();
            prop_assert_eq!(u128::from(scale.sum(&weights)), total);
            let mut sum = 0;
            let expected = weights.iter().position(|weight| {
                sum += u128::from(scale.mass(*weight));
                // sum / total > point / 2⁵³, in whole places.
                sum > (u128::from(point) * total) >> 53
            });
            prop_assert_eq!(scale.invert(&weights, point), expected.unwrap_or(0) as u32);
        }
    }

    #[test]
    fn weights_round_to_the_nearest_unit() {
        let scale = MassScale::of(1000);
        assert_eq!(scale.bits(), 44);
        let unit = (-44f32).exp2();
        for (weight, mass) in [
            (1.0, 1 << 44),
            (0.5, 1 << 43),
            (unit, 1),
            (0.5 * unit, 0),
            (0.75 * unit, 1),
            (1.5 * unit, 2),
            (2.5 * unit, 2),
            (1e-38, 0),
            (0.0, 0),
        ] {
            assert_eq!(scale.mass(weight), mass, "{weight}");
        }
    }

    /// The sum fits even if all tokens are as likely as the most likely one.
    #[test]
    fn no_vocabulary_is_too_large_for_a_sum() {
        for vocab in [0, 1, 2, 1000, 1 << 18, 1 << 19, 1 << 20, u32::MAX as usize] {
            let scale = MassScale::of(vocab);
            let sum = u128::from(scale.mass(1.0)) * vocab as u128;
            assert!(sum < 1 << 64, "{vocab}: {sum}");
            assert_eq!(scale.mass(1.0), 1 << scale.bits());
        }
    }

    #[test]
    fn never_a_token_without_mass() {
        let scale = MassScale::of(4);
        let last = (1 << 53) - 1;
        assert_eq!(scale.invert(&[0.0, 0.1, 0.2, 0.0], 0), 1);
        assert_eq!(scale.invert(&[0.0, 0.1, 0.2, 0.0], last), 2);
        assert_eq!(scale.invert(&[0.0; 3], last / 2), 0);
        assert_eq!(share(1e-30, 7), 1);
        for total in [1, (1 << 60) + 1, u64::MAX] {
            assert_eq!(share(1.0, total), total);
        }
        assert_eq!(share(0.5, 7), 4);
    }
}

//! Logits and probabilities in integers.

/// One in fixed point with 16 binary places.
pub(super) const ONE: i64 = 1 << 16;
/// Largest logit; larger ones count as this: probabilities are 0.25 to 99.75 %.
pub(super) const MOST: i64 = 6 * ONE;

/// Returns `1 / (1 + e^-x)`, within one part in 5,000.
pub(super) fn sigmoid(x: i64) -> i64 {
    // e^-|x| as a power of two, log2(e) = 94548 / 65536.
    let power = x.abs().min(MOST) * 94_548 / ONE;
    let (whole, part) = (power / ONE, power % ONE);
    let decay = (exp2(ONE - part) / 2) >> whole;
    let below = decay * ONE / (ONE + decay);
    if x < 0 { below } else { ONE - below }
}

/// Returns `2^x` for `x` from 0 to 1, by the cubic with the right values and slopes at the
/// ends.
fn exp2(x: i64) -> i64 {
    let cubic = 14_904 + 5_206 * x / ONE;
    ONE + x * (45_426 + x * cubic / ONE) / ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_probabilities_come_out_and_the_curve_rises() {
        // In hundred-thousandths, at half a logit's steps from 0.
        let known = [
            50_000, 62_246, 73_106, 81_757, 88_080, 92_414, 95_257, 97_069, 98_201,
        ];
        for (at, expected) in known.into_iter().enumerate() {
            let x = at as i64 * ONE / 2;
            let told = sigmoid(x) * 100_000 / ONE;
            assert!((told - expected).abs() <= 20, "{told} for {expected}");
            assert_eq!(
                sigmoid(x) + sigmoid(-x),
                if x == 0 { 2 * sigmoid(0) } else { ONE }
            );
        }
        assert!((-MOST..MOST).step_by(97).map(sigmoid).is_sorted());
        assert_eq!(sigmoid(i64::from(i32::MAX)), sigmoid(MOST));
    }
}

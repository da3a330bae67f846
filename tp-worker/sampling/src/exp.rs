//! An exponential with the same bits on every machine.

/// `eˣ` for `x ≤ 0`, within 2 units in the last place. It is 0 below -87.3, where the result
/// would be denormal. Branch-free plain arithmetic, so that loops over it vectorise and no
/// library version changes a sampled token.
#[inline]
pub(crate) fn exp_nonpositive(x: f32) -> f32 {
    // Range reduction and minimax polynomial as in Cephes' expf: x = k·ln 2 + r.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5·2²³ rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.max(-87.3);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = clamped - k * LN2_HIGH - k * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(exponent.wrapping_add(127) << 23);
    if x < -87.3 { 0.0 } else { y * scale }
}

/// `Σ values`, in one fixed order: eight interleaved sums in f64, then the sum of these.
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(*value);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_library() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let (ours, exact) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            assert!((ours / exact - 1.0).abs() < 2.5e-7, "{x}: {ours} {exact}");
        }
    }

    #[test]
    fn edges() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(-1e30), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sum_is_exact_on_integers() {
        let values: Vec<f32> = (0..1003u16).map(f32::from).collect();
        assert_eq!(sum(&values), 1002.0 * 1003.0 / 2.0);
    }
}

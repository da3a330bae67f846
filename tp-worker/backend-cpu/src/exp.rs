//! The exponential all kernels share.

/// Below this, `exp` is 0: results would be subnormal.
const LOWEST: f32 = -87.336_54;
/// Above this, `exp` is infinite.
const HIGHEST: f32 = 88.722_83;
/// Adding and subtracting it rounds to the nearest integer: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;

/// `eˣ`, within 2 ulp; exactly 1 at 0, exactly 0 below [`LOWEST`], NaN for NaN.
///
/// Cody and Waite's reduction with the polynomial of Cephes' `expf` (Moshier).
/// Plain multiplications and additions without branches: it vectorises and
/// gives the same bits on every instruction set.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(LOWEST, HIGHEST);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4_f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // 2ⁿ in two factors, as n may be 128. The low bits of `shifted` hold n.
    let n = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .cast_signed();
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned());
    let y = y * power(half) * power(n.wrapping_sub(half));
    let y = if x < LOWEST { 0.0 } else { y };
    let y = if x > HIGHEST { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_within_two_ulp(x in -87.3f32..88.7) {
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            prop_assert!((f64::from(exp(x)) - exact).abs() <= 2.0 * ulp, "exp({x}) = {}", exp(x));
        }
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}

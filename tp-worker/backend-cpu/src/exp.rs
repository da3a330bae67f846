//! The exponential function that all kernels share.

/// Argument below which `exp` is 0: results would be subnormal.
const LOWEST: f32 = -87.336_54;
/// Argument above which `exp` is infinite.
const HIGHEST: f32 = 88.722_83;
/// Number whose addition and subtraction rounds to the nearest integer: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;

/// `eˣ`, within 2 ulp; exactly 1 at 0, exactly 0 below [`LOWEST`], NaN for NaN.
///
/// The function is Cody and Waite's reduction with the polynomial of Cephes' `expf`
/// (Moshier). It has plain multiplications and additions without branches. So the compiler
/// vectorises it, and it gives the same bits on every instruction set.
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

/// Argument below which `exp2_nonpositive` is 0: results would be subnormal.
pub(crate) const LOWEST_POWER: f32 = -126.0;

/// `2ˣ` on ±½: 1 + x · (Chebyshev's interpolation of (2ˣ − 1) / x), highest
/// power first.
pub(crate) const POWERS: [f32; 7] = [
    1.545_316_3e-4,
    1.339_086_3e-3,
    9.618_083e-3,
    5.550_357e-2,
    0.240_226_5,
    6.931_472e-1,
    1.0,
];

/// `2ˣ` for `x ≤ 0`, within 2 ulp; exactly 1 at 0, exactly 0 below
/// [`LOWEST_POWER`], NaN for NaN.
///
/// The softmax has this exponential for itself: its arguments are differences to a maximum,
/// already in powers of two. The function is shorter than [`exp`] by the reduction and by
/// the cases that a positive argument brings. It is the same on every instruction set.
#[inline(always)]
pub(crate) fn exp2_nonpositive(x: f32) -> f32 {
    let clamped = if x < LOWEST_POWER { LOWEST_POWER } else { x };
    let shifted = clamped + ROUND;
    let r = clamped - (shifted - ROUND);
    let mut p = POWERS[0];
    for coefficient in &POWERS[1..] {
        p = p * r + coefficient;
    }
    // The low bits of `shifted` hold the whole part, which is never positive.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LOWEST_POWER { 0.0 } else { p * power }
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

    proptest! {
        #[test]
        fn powers_of_two_are_within_two_ulp(x in -126f32..0.0) {
            let exact = f64::from(x).exp2();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            let found = exp2_nonpositive(x);
            prop_assert!((f64::from(found) - exact).abs() <= 2.0 * ulp, "2^{x} = {found}");
        }
    }

    #[test]
    fn powers_of_two_are_exact_where_they_can_be() {
        assert_eq!(exp2_nonpositive(0.0), 1.0);
        assert_eq!(exp2_nonpositive(-0.0), 1.0);
        assert_eq!(exp2_nonpositive(-126.0), f32::MIN_POSITIVE);
        assert_eq!(exp2_nonpositive(-3.0), 0.125);
        assert_eq!(exp2_nonpositive(-126.1), 0.0);
        assert_eq!(exp2_nonpositive(f32::NEG_INFINITY), 0.0);
        assert!(exp2_nonpositive(f32::NAN).is_nan());
        assert!(exp2_nonpositive(f32::from_bits(0x7f80_0001)).is_nan());
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

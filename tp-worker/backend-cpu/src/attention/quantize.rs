//! Symmetric int8 rows with one scale each.

use crate::multiversion::multiversion;

/// The largest code.
const CODES: f32 = 127.0;
/// Rows with a largest magnitude below this are stored as zeros: the reciprocal of their
/// scale might overflow.
const TINY: f32 = 1e-30;
/// Number whose addition rounds to the nearest integer, which then sits in the low bits:
/// 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;

multiversion! {
    /// Quantizes a row; `value ≈ code · scale` within half a scale. The scale of a row that
    /// is not finite is not finite either, so that the row stays recognisably broken.
    ///
    /// The row takes a maximum and plain multiplications, so codes are the same on every
    /// instruction set.
    pub(crate) fn quantize(row: &[f32], codes: &mut [i8], scale: &mut f32) {
        // As integers, magnitudes are ordered like their values and NaN is largest.
        let largest = row.iter().fold(0u32, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        if largest < TINY {
            codes.fill(0);
            *scale = 0.0;
            return;
        }
        *scale = largest / CODES;
        let inverse = CODES / largest;
        for (code, x) in codes.iter_mut().zip(row) {
            *code = (x * inverse + ROUND).to_bits() as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::isa::Isa;

    fn quantized(isa: Isa, row: &[f32]) -> (Vec<i8>, f32) {
        let (mut codes, mut scale) = (vec![99; row.len()], f32::NAN);
        quantize(isa, row, &mut codes, &mut scale);
        (codes, scale)
    }

    proptest! {
        #[test]
        fn values_come_back_within_half_a_scale_and_alike_everywhere(
            row in prop::collection::vec(-1f32..1.0, 1..200),
            exponent in -60i32..60,
        ) {
            let row: Vec<f32> = row.iter().map(|x| x * 2f32.powi(exponent)).collect();
            let (codes, scale) = quantized(Isa::Scalar, &row);
            for (x, &code) in row.iter().zip(&codes) {
                prop_assert!(code != i8::MIN);
                let error = (f64::from(*x) - f64::from(code) * f64::from(scale)).abs();
                prop_assert!(error <= 0.500_1 * f64::from(scale), "{x} as {code} · {scale}");
            }
            for isa in Isa::available() {
                let (other, other_scale) = quantized(isa, &row);
                prop_assert_eq!(&other, &codes);
                prop_assert_eq!(other_scale.to_bits(), scale.to_bits());
            }
        }
    }

    #[test]
    fn zeros_stay_zero_and_what_is_not_finite_shows() {
        assert_eq!(quantized(Isa::Scalar, &[0.0, -0.0]), (vec![0, 0], 0.0));
        assert_eq!(quantized(Isa::Scalar, &[1e-38, 0.0]), (vec![0, 0], 0.0));
        assert!(quantized(Isa::Scalar, &[1.0, f32::NAN]).1.is_nan());
        assert_eq!(
            quantized(Isa::Scalar, &[1.0, f32::INFINITY]).1,
            f32::INFINITY
        );
    }
}

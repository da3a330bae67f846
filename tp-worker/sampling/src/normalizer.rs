//! The normalizer of drafts, in arithmetic that a device can repeat bit by bit.

use crate::{MassScale, SamplingError, exp::exp_nonpositive, logprob::finite_max};

/// Number of weights that are summed at a time.
const BLOCK: usize = 512;

/// Returns the largest logit and `ln Σ exp(logit - largest)`. The weights become whole numbers
/// first, so that their sum does not depend on an order.
///
/// # Errors
/// [`SamplingError::NotFinite`] for NaN, +∞ or nothing but -∞.
pub fn log_mass(logits: &[f32]) -> Result<(f32, f32), SamplingError> {
    let max = finite_max(logits)?;
    let scale = MassScale::of(logits.len());
    let mut weights = [0f32; BLOCK];
    let mut total = 0;
    for chunk in logits.chunks(BLOCK) {
        for (weight, logit) in weights.iter_mut().zip(chunk) {
            *weight = exp_nonpositive(logit - max);
        }
        total += scale.sum(&weights[..chunk.len()]);
    }
    // Only the conversion of the whole number rounds: a power of two divides exactly.
    let sum = total as f64 / f64::from(scale.bits()).exp2();
    Ok((max, ln(sum) as f32))
}

/// Returns `ln x` of `x ≥ 1`, within 10⁻¹³ of it. It uses additions, multiplications and one
/// division, each rounded by itself.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let (bits, one) = (x.to_bits(), 1f64.to_bits());
    let mut exponent = (bits >> 52) as f64 - 1023.0;
    let mut mantissa = f64::from_bits(bits & MANTISSA | one);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    // ln m = 2 artanh z.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let mut series = 1.0 / 15.0;
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / divisor;
    }
    exponent * std::f64::consts::LN_2 + z * series * 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_normalizer;

    #[test]
    fn close_to_the_library() {
        for step in 0..100_000 {
            let x = 1.0 + f64::from(step) * 1.37;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "{x}: {}", ln(x));
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn close_to_what_clients_are_told() {
        for width in [1, 2, 511, 513, 128_256] {
            let logit = |at: usize| (at.wrapping_mul(2_654_435_761) % 1000) as f32 / 77.0;
            let logits: Vec<f32> = (0..width).map(logit).collect();
            let (max, log_sum) = log_mass(&logits).unwrap();
            let (expected, exact) = log_normalizer(&logits).unwrap();
            assert_eq!(max, expected);
            assert!((f64::from(log_sum) - exact).abs() < 1e-6, "{width}");
        }
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0]] {
            assert!(log_mass(&logits).is_err());
        }
        assert!(log_mass(&[f32::NEG_INFINITY; 3]).is_err());
        assert_eq!(log_mass(&[3.0, f32::NEG_INFINITY]), Ok((3.0, 0.0)));
    }
}

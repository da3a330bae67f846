//! The softmax of [`super::avx512_bf16::integers`] in plain Rust, bit for bit.

use super::{Bytes, LANES, Rows, State, fold, larger};
use crate::attention::cells::BLOCK;
use crate::exp::{LOWEST_POWER, POWERS, exp2_nonpositive};
use crate::multiversion::multiversion;

/// Adding and subtracting it rounds to the nearest integer: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;

/// `2ˣ` for `x ≤ 0`, zero below [`LOWEST_POWER`], NaN for NaN.
#[inline(always)]
fn power(x: f32) -> f32 {
    let clamped = if x < LOWEST_POWER { LOWEST_POWER } else { x };
    let shifted = clamped + ROUND;
    let r = clamped - (shifted - ROUND);
    let mut p = POWERS[0];
    for coefficient in &POWERS[1..] {
        p = p.mul_add(r, *coefficient);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LOWEST_POWER { 0.0 } else { p * power }
}

/// What brings numbers of at most this exponent below 2¹⁶, and back.
#[inline(always)]
pub(super) fn powers_around(exponent: u32) -> (f32, f32) {
    /// The exponent of what is not finite; a sign only adds to it.
    const NOT_FINITE: u32 = 255;
    /// Numbers below this one's lose bits: their power would overflow.
    const LEAST: u32 = 16;
    if exponent >= NOT_FINITE {
        return (0.0, f32::NAN);
    }
    let exponent = exponent.max(LEAST);
    (
        f32::from_bits((269 - exponent) << 23),
        f32::from_bits((exponent - 15) << 23),
    )
}

multiversion! {
    /// Turns raw scores into weights times `scales`, as 16-bit integers, and
    /// tells what one of those is worth in each row.
    pub(in crate::attention) fn integers(
        tile: Rows<'_>,
        scales: &[f32; BLOCK],
        out: &mut [Bytes],
        worth: &mut [f32],
    ) {
        let Rows { scores, visible, scales: factors, states, acc, mut asking } = tile;
        asking.until(1, 1);
        let width = acc.len() / scores.len();
        for (row, scores) in scores.iter_mut().enumerate() {
            let (state, visible) = (&mut states[row], visible[row]);
            let mut max = f32::NEG_INFINITY;
            for i in 0..BLOCK {
                scores[i] *= factors[i];
                max = if i < visible { larger(scores[i], max) } else { max };
            }
            if max > state.max {
                let rescale = exp2_nonpositive(state.max - max);
                *state = State { max, sum: state.sum * rescale };
                let acc = &mut acc[row * width..(row + 1) * width];
                acc.iter_mut().for_each(|value| *value *= rescale);
            }
            let mut sums = [0.0f32; LANES];
            let mut largest = 0;
            for i in 0..BLOCK {
                let weight = if i < visible { power(scores[i] - state.max) } else { 0.0 };
                sums[i % LANES] += weight;
                scores[i] = if i < visible { weight * scales[i] } else { 0.0 };
                largest = largest.max(scores[i].to_bits());
            }
            state.sum += fold(sums, |a, b| a + b);
            let (up, down) = powers_around(largest >> 23);
            worth[row] = down;
            let [upper, lower] = &mut out[row];
            for i in 0..BLOCK {
                let integer = (scores[i] * up) as i32;
                (upper[i], lower[i]) = ((integer >> 8) as u8, integer as u8);
            }
        }
    }
}

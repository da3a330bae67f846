//! The softmax of [`super::avx512_bf16::integers`] in plain Rust, bit for bit. AVX2 and the
//! emulation use it.

use super::{Bytes, LANES, Rows, State, fold, larger, scale_row};
use crate::attention::cells::BLOCK;
use crate::attention::visible::Visible;
use crate::exp::{LOWEST_POWER, POWERS, exp2_nonpositive};
use crate::multiversion::multiversion;

/// Number whose addition rounds to the nearest integer, whose power of two then only needs a
/// shift: 1.5 · 2²³, plus the exponent's offset. The number is odd, and so decides between
/// two integers that are equally near.
pub(super) const ROUND: f32 = WHOLE + 127.0;
/// Number whose addition rounds to the nearest integer, which then sits in the low bits:
/// 1.5 · 2²³.
const WHOLE: f32 = 12_582_912.0;
/// The largest integer that is also a signed 16-bit one.
pub(super) const LARGEST: f32 = 32_767.0;

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
    let power = f32::from_bits(shifted.to_bits() << 23);
    if x < LOWEST_POWER { 0.0 } else { p * power }
}

/// The factor that brings numbers of at most this biased exponent below 2¹⁵, and its
/// inverse. Below 2¹⁵ integers are signed 16-bit numbers too, which AVX2 multiplies.
#[inline(always)]
pub(super) fn powers_around(exponent: u32) -> (f32, f32) {
    /// The exponent of numbers that are not finite; a sign only adds to it.
    const NOT_FINITE: u32 = 255;
    /// The exponent below which numbers lose bits: their factor would overflow.
    const LEAST: u32 = 15;
    if exponent >= NOT_FINITE {
        return (0.0, f32::NAN);
    }
    let exponent = exponent.max(LEAST);
    (
        f32::from_bits((268 - exponent) << 23),
        f32::from_bits((exponent - 14) << 23),
    )
}

/// Scales raw scores, and raises the rows' maxima to the maxima of this block.
#[inline(always)]
fn raise_maxima(tile: &mut Rows<'_>) {
    let rows = tile.scores.len();
    let width = tile.acc.len() / rows;
    for row in 0..rows {
        tile.asking.until(row + 1, 2 * rows);
        let lanes = scale_row(&mut tile.scores[row], tile.visible[row], tile.scales);
        let (max, state) = (fold(lanes, larger), &mut tile.states[row]);
        if max > state.max {
            let rescale = exp2_nonpositive(state.max - max);
            let sum = state.sum * rescale;
            *state = State { max, sum };
            let acc = &mut tile.acc[row * width..(row + 1) * width];
            acc.iter_mut().for_each(|value| *value *= rescale);
        }
    }
}

/// Turns a row's scores into integer weights; returns the value of the integer 1.
#[inline(always)]
fn weigh_row(
    scores: &mut [f32; BLOCK],
    visible: Visible,
    state: &mut State,
    scales: &[f32; BLOCK],
) -> ([u16; BLOCK], f32) {
    let seen = visible.words();
    let (mut sums, mut largest) = ([0.0f32; LANES], [0; LANES]);
    for (part, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        // Positions that the row does not see may have scales that are not finite.
        let shown = |x: f32, lane| f32::from_bits(x.to_bits() & seen.at(part * LANES + lane));
        for lane in 0..LANES {
            scores[lane] = shown(power(scores[lane] - state.max), lane);
            sums[lane] += scores[lane];
        }
        for lane in 0..LANES {
            scores[lane] = shown(scores[lane] * scales[part * LANES + lane], lane);
            // No weight is negative, and such numbers are ordered like their bits.
            largest[lane] = largest[lane].max(scores[lane].to_bits());
        }
    }
    state.sum += fold(sums, |a, b| a + b);
    let largest = largest.into_iter().fold(0, u32::max);
    let (up, worth) = powers_around(largest >> 23);
    let mut integers = [0; BLOCK];
    for (integer, score) in integers.iter_mut().zip(scores) {
        // Any integer will do for NaN: the row's integer 1 is then worth NaN.
        let scaled = *score * up;
        let below = if scaled < LARGEST { scaled } else { LARGEST };
        *integer = (below + WHOLE).to_bits() as u16;
    }
    (integers, worth)
}

/// Computes the weights of all rows, and stores them with `store`.
#[inline(always)]
fn weigh(
    mut tile: Rows<'_>,
    scales: &[f32; BLOCK],
    out: &mut [Bytes],
    worth: &mut [f32],
    store: impl Fn(&[u16; BLOCK], &mut Bytes),
) {
    raise_maxima(&mut tile);
    let rows = tile.scores.len();
    for row in 0..rows {
        tile.asking.until(rows + row + 1, 2 * rows);
        let (scores, state) = (&mut tile.scores[row], &mut tile.states[row]);
        let integers;
        (integers, worth[row]) = weigh_row(scores, tile.visible[row], state, scales);
        store(&integers, &mut out[row]);
    }
}

multiversion! {
    /// Turns raw scores into weights times `scales`, as 16-bit integers in two separate
    /// bytes, and writes the value of the integer 1 in each row.
    pub(in crate::attention) fn integers(
        tile: Rows<'_>,
        scales: &[f32; BLOCK],
        out: &mut [Bytes],
        worth: &mut [f32],
    ) {
        weigh(tile, scales, out, worth, |integers, [upper, lower]| {
            for (i, integer) in integers.iter().enumerate() {
                (upper[i], lower[i]) = ((integer >> 8) as u8, *integer as u8);
            }
        });
    }
}

#[cfg(target_arch = "x86_64")]
multiversion! {
    /// Turns raw scores into weights like [`integers`], with the integers whole, lower byte
    /// first.
    pub(in crate::attention) fn shorts(
        tile: Rows<'_>,
        scales: &[f32; BLOCK],
        out: &mut [Bytes],
        worth: &mut [f32],
    ) {
        weigh(tile, scales, out, worth, |integers, out| {
            let shorts = out.as_flattened_mut().as_chunks_mut().0;
            for (short, integer) in shorts.iter_mut().zip(integers) {
                *short = integer.to_le_bytes();
            }
        });
    }
}

//! The softmax before AMX tiles: weights leave it as pairs of bf16 in the order
//! that tiles load.
//!
//! Plain Rust and AVX-512 give the same bits. The softmax uses fused multiply-adds, a
//! polynomial as short as f32 allows, and zeros for subnormal weights, because tiles read
//! those as zeros. A row's sums are brought to a new maximum only where the maximum has
//! risen by more than [`SLACK`]. So weights may be as large as 2⁸: rounding is relative, and
//! hardly any block after the first of a segment has to touch sums.

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{LANES, Rows, State, fold, larger};
use crate::attention::cells::BLOCK;
use crate::exp::{LOWEST_POWER, exp2_nonpositive};
use crate::gemm::BLOCK_STEPS;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::flushed_bf16_bits;

/// Largest distance, in powers of two, of scores above the maximum that a row's sums were
/// brought to.
const SLACK: f32 = 8.0;
/// `2ˣ` on ±½: 1 + x · (Chebyshev's interpolation of (2ˣ − 1) / x), highest
/// power first; within 2.1e-7.
const POWERS: [f32; 6] = [
    1.338_130_3e-3,
    9.666_368e-3,
    5.550_381e-2,
    2.402_235e-1,
    6.931_472e-1,
    1.0,
];
/// Number whose addition and subtraction rounds to the nearest integer: 1.5 · 2²³.
const ROUND: f32 = 12_582_912.0;

/// Turns raw scores of several queries into weights `2^(score · scale − max)`, zero where the
/// query sees nothing. Takes the weights' sums, multiplies the weights by `scales`, and
/// leaves them in `out` as pairs of bf16: `[height][16 pairs]` for each half of the block,
/// of which the first rows are the queries'. Without `scales` all scores have the same
/// positive factor. Rows of `acc`, the weighted sums so far, follow their maxima. A query
/// that sees nothing keeps its state.
pub(crate) fn softmax_blocks(
    isa: Isa,
    tile: Rows<'_>,
    scales: Option<&[f32; BLOCK]>,
    lanes: &mut [[f32; LANES]],
    out: &mut [u32],
    height: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx {
        // SAFETY: a backend is built only for an instruction set this machine
        // runs; what has AMX has AVX-512 with bf16.
        return unsafe { avx512::softmax(tile, scales, lanes, out, height) };
    }
    plain(isa, tile, scales, lanes, out, height);
}

/// Brings a row to a maximum that lies far above the old one.
#[inline(always)]
fn raise(state: &mut State, max: f32, acc: &mut [f32]) {
    let rescale = exp2_nonpositive(state.max - max);
    *state = State {
        max,
        sum: state.sum * rescale,
    };
    acc.iter_mut().for_each(|value| *value *= rescale);
}

/// `2ˣ`, zero below [`LOWEST_POWER`], NaN for NaN.
#[inline(always)]
fn power(x: f32) -> f32 {
    let clamped = if x < LOWEST_POWER { LOWEST_POWER } else { x };
    let shifted = clamped + ROUND;
    let r = clamped - (shifted - ROUND);
    let mut p = POWERS[0];
    for coefficient in &POWERS[1..] {
        p = p.mul_add(r, *coefficient);
    }
    // The low bits of `shifted` hold the whole part.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < LOWEST_POWER { 0.0 } else { p * power }
}

multiversion! {
    /// See [`softmax_blocks`].
    fn plain(
        tile: Rows<'_>,
        scales: Option<&[f32; BLOCK]>,
        lanes: &mut [[f32; LANES]],
        out: &mut [u32],
        height: usize,
    ) {
        let Rows { scores, visible, scales: factors, states, acc, mut asking } = tile;
        asking.until(1, 1);
        let width = acc.len() / scores.len();
        let rows = scores.iter_mut().zip(visible).zip(states).zip(acc.chunks_exact_mut(width));
        for (row, (((scores, &visible), state), acc)) in rows.enumerate() {
            let seen = |i: usize| (visible.start..visible.end).contains(&i);
            let mut maxima = [f32::NEG_INFINITY; LANES];
            for i in 0..BLOCK {
                let score = if seen(i) { scores[i] * factors[i] } else { f32::NEG_INFINITY };
                maxima[i % LANES] = larger(score, maxima[i % LANES]);
            }
            let max = fold(maxima, larger);
            if max > state.max + SLACK {
                raise(state, max, acc);
            }
            for i in 0..BLOCK {
                let weight = power(scores[i].mul_add(factors[i], -state.max));
                scores[i] = if seen(i) { weight } else { 0.0 };
            }
            let (parts, _) = scores.as_chunks::<LANES>();
            let sums = &mut lanes[row];
            *sums = parts[0];
            for part in &parts[1..] {
                for lane in 0..LANES {
                    sums[lane] += part[lane];
                }
            }
            state.sum += fold(*sums, |a, b| a + b);
            if let Some(scales) = scales {
                for i in visible.start..visible.end {
                    scores[i] *= scales[i];
                }
            }
            for (half, scores) in scores.as_chunks::<{ 2 * BLOCK_STEPS }>().0.iter().enumerate() {
                let out = &mut out[(half * height + row) * BLOCK_STEPS..][..BLOCK_STEPS];
                for (pair, out) in out.iter_mut().enumerate() {
                    *out = flushed_bf16_bits(scores[2 * pair])
                        | (flushed_bf16_bits(scores[2 * pair + 1]) << 16);
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

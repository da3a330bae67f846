//! The online softmax over one block of positions (Milakov & Gimelshein, arXiv:1805.02867),
//! in powers of two: factors of scores include log₂ e.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_bf16;
mod blocks;
pub(super) mod whole;

use super::cells::BLOCK;
use super::prefetch::Asking;
use super::visible::Visible;
use crate::exp::exp2_nonpositive;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::number::{bf16_bits, to_pairs};

pub(super) use blocks::softmax_blocks;

/// Partial maxima and sums of a row, which are folded in one fixed order.
pub(super) const LANES: usize = 16;

/// Running maximum and sum of one query, in powers of two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    pub max: f32,
    pub sum: f32,
}

impl State {
    /// State of a query that has seen nothing yet.
    pub(crate) const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.sum == 0.0 && self.max == f32::NEG_INFINITY
    }
}

/// Two bytes of each weight of a row, `[upper, lower][positions]`.
pub(crate) type Bytes = [[u8; BLOCK]; 2];

/// The rows of a tile before a block.
pub(crate) struct Rows<'a> {
    /// Raw scores.
    pub scores: &'a mut [[f32; BLOCK]],
    /// Positions that each row sees.
    pub visible: &'a [Visible],
    /// Factors of raw scores.
    pub scales: &'a [f32; BLOCK],
    pub states: &'a mut [State],
    /// The weighted sums so far.
    pub acc: &'a mut [f32],
    /// Rows to ask for meanwhile.
    pub asking: Asking<'a>,
}

/// Last operations on a block's weights, once their sum is taken.
pub(crate) struct Finish<'a> {
    /// Factors of the weights.
    pub scales: Option<&'a [f32; BLOCK]>,
    /// True if the weights are rounded to bf16 in the end.
    pub round: bool,
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = combine(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// Scales a row's raw scores, hides those of positions that the row does not see, and returns
/// the largest score in each lane.
#[inline(always)]
fn scale_row(scores: &mut [f32; BLOCK], visible: Visible, scales: &[f32; BLOCK]) -> [f32; LANES] {
    let seen = visible.words();
    let hidden = f32::NEG_INFINITY.to_bits();
    for i in 0..BLOCK {
        let scaled = (scores[i] * scales[i]).to_bits();
        scores[i] = f32::from_bits((scaled & seen.at(i)) | (hidden & !seen.at(i)));
    }
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            maxima[lane] = larger(chunk[lane], maxima[lane]);
        }
    }
    maxima
}

/// Turns a row's scaled scores into weights; returns the weights' sum in each lane.
#[inline(always)]
fn weigh_row(scores: &mut [f32; BLOCK], max: f32, finish: &Finish<'_>) -> [f32; LANES] {
    let mut sums = [0.0f32; LANES];
    for (index, chunk) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for lane in 0..LANES {
            chunk[lane] = exp2_nonpositive(chunk[lane] - max);
            sums[lane] += chunk[lane];
        }
        if let Some(scales) = finish.scales {
            for lane in 0..LANES {
                chunk[lane] *= scales[index * LANES + lane];
            }
        }
        if finish.round {
            for weight in chunk {
                *weight = f32::from_bits(bf16_bits(*weight) << 16);
            }
        }
    }
    sums
}

multiversion! {
    /// Turns raw scores of several queries into weights `2^(score · scale − max)` in place,
    /// zero where the query sees nothing. Updates the queries' states and rescales their rows
    /// of `acc`, the weighted sums so far, to the new maxima. A query that sees nothing of the
    /// block keeps its state.
    ///
    /// Goes through all rows for each kind of work: rows are independent, so their long
    /// chains of dependent instructions overlap.
    pub(crate) fn softmax_rows(tile: Rows<'_>, finish: &Finish<'_>, lanes: &mut [[f32; LANES]]) {
        let Rows { scores, visible, scales, states, acc, mut asking } = tile;
        let rows = scores.len();
        let (visible, states, lanes) = (&visible[..rows], &mut states[..rows], &mut lanes[..rows]);
        for row in 0..rows {
            asking.until(row + 1, 2 * rows);
            lanes[row] = scale_row(&mut scores[row], visible[row], scales);
        }
        let width = acc.len() / rows;
        for ((state, maxima), acc) in states.iter_mut().zip(&*lanes).zip(acc.chunks_exact_mut(width)) {
            let max = fold(*maxima, larger);
            // Also false for a row that sees nothing, whose maximum is −∞.
            if max > state.max {
                let rescale = exp2_nonpositive(state.max - max);
                *state = State { max, sum: state.sum * rescale };
                acc.iter_mut().for_each(|value| *value *= rescale);
            }
        }
        for row in 0..rows {
            asking.until(rows + row + 1, 2 * rows);
            if visible[row].is_nothing() {
                scores[row].fill(0.0);
                lanes[row].fill(0.0);
            } else {
                lanes[row] = weigh_row(&mut scores[row], states[row].max, finish);
            }
        }
        for (state, sums) in states.iter_mut().zip(&*lanes) {
            state.sum += fold(*sums, |a, b| a + b);
        }
    }
}

/// Computes weights like [`softmax_rows`], but leaves them as pairs of bf16 in `out`, with
/// odd positions in the upper halves.
pub(crate) fn softmax_pairs(
    isa: Isa,
    tile: Rows<'_>,
    scales: Option<&[f32; BLOCK]>,
    lanes: &mut [[f32; LANES]],
    out: &mut [[u32; BLOCK]],
) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512Bf16 {
        // SAFETY: a backend is built only for an instruction set this machine runs.
        return unsafe { avx512_bf16::pairs(tile, scales, out) };
    }
    let scores = tile.scores;
    let tile = Rows {
        scores: &mut *scores,
        ..tile
    };
    let finish = Finish {
        scales,
        round: false,
    };
    softmax_rows(isa, tile, &finish, lanes);
    for (weights, pairs) in scores.iter().zip(out) {
        to_pairs(isa, weights, pairs);
    }
}

multiversion! {
    /// Folds a later segment's state and weighted sum into the total.
    pub(crate) fn merge(
        total: &mut State,
        total_acc: &mut [f32],
        segment: &State,
        segment_acc: &[f32],
    ) {
        let max = larger(segment.max, total.max);
        let (old, new) = (
            exp2_nonpositive(total.max - max),
            exp2_nonpositive(segment.max - max),
        );
        for (total, segment) in total_acc.iter_mut().zip(segment_acc) {
            *total = *total * old + segment * new;
        }
        *total = State { max, sum: total.sum * old + segment.sum * new };
    }
}

multiversion! {
    /// Turns weighted sums into the weighted mean; into zeros for a query that saw nothing. A sink
    /// is a score in powers of two, beside those that were seen.
    pub(crate) fn finish(state: &State, sink: Option<f32>, sums: &mut [f32]) {
        let scale = match sink {
            _ if state.is_empty() => 0.0,
            None => 1.0 / state.sum,
            Some(sink) => {
                let max = larger(sink, state.max);
                let seen = exp2_nonpositive(state.max - max);
                seen / (state.sum * seen + exp2_nonpositive(sink - max))
            }
        };
        sums.iter_mut().for_each(|sum| *sum *= scale);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

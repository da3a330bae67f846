//! The online softmax over one block of positions (Milakov & Gimelshein,
//! arXiv:1805.02867).

use super::cache::BLOCK;
use crate::exp::exp;
use crate::multiversion::multiversion;

const LANES: usize = 16;

/// Running maximum and sum of one query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    pub max: f32,
    pub sum: f32,
}

impl State {
    /// Nothing seen yet.
    pub(crate) const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
    };
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

/// One row of [`softmax_rows`].
#[inline(always)]
fn softmax_row(
    scores: &mut [f32; BLOCK],
    visible: usize,
    scale: f32,
    state: &mut State,
    acc: &mut [f32],
) {
    for (j, score) in scores.iter_mut().enumerate() {
        let scaled = *score * scale;
        *score = if j < visible {
            scaled
        } else {
            f32::NEG_INFINITY
        };
    }
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            maxima[lane] = larger(chunk[lane], maxima[lane]);
        }
    }
    let max = larger(fold(maxima, larger), state.max);
    let mut sums = [0.0f32; LANES];
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - max);
            sums[lane] += chunk[lane];
        }
    }
    let sum = fold(sums, |a, b| a + b);
    if max > state.max {
        let rescale = exp(state.max - max);
        state.sum *= rescale;
        for value in acc.iter_mut() {
            *value *= rescale;
        }
    }
    state.max = max;
    state.sum += sum;
}

multiversion! {
    /// Turns raw scores of several queries into weights `exp(score · scale −
    /// max)` in place, zero from the query's `visible` on; updates their states
    /// and rescales their rows of `acc`, the weighted sums so far, to the new
    /// maxima. A query that sees nothing keeps its state.
    pub(crate) fn softmax_rows(
        scores: &mut [[f32; BLOCK]],
        visible: &[usize],
        scale: f32,
        states: &mut [State],
        acc: &mut [f32],
    ) {
        let width = acc.len() / scores.len();
        let sums = states.iter_mut().zip(acc.chunks_exact_mut(width));
        for ((scores, &visible), (state, acc)) in scores.iter_mut().zip(visible).zip(sums) {
            if visible == 0 {
                scores.fill(0.0);
            } else {
                softmax_row(scores, visible, scale, state, acc);
            }
        }
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
        let (old, new) = (exp(total.max - max), exp(segment.max - max));
        for (total, segment) in total_acc.iter_mut().zip(segment_acc) {
            *total = *total * old + segment * new;
        }
        *total = State { max, sum: total.sum * old + segment.sum * new };
    }
}

multiversion! {
    /// The weighted mean.
    pub(crate) fn finish(state: &State, acc: &[f32], out: &mut [f32]) {
        let scale = 1.0 / state.sum;
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = acc * scale;
        }
    }
}

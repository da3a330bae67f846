//! Root-mean-square norms (Zhang & Sennrich, arXiv:1910.07467).

use std::ops::Range;

use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;

/// Partial sums of a row; folded pairwise.
const LANES: usize = 32;

/// Sum of squares: value `i` goes to partial sum `i mod 32`.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += chunk[lane] * chunk[lane];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x * x;
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

multiversion! {
    fn norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

multiversion! {
    fn norm_row_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}

multiversion! {
    fn sum_row(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    }
}

multiversion! {
    fn add_sum_row(x: &mut [f32], a: &[f32], b: &[f32]) {
        for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
            *x += a + b;
        }
    }
}

multiversion! {
    fn add_row(x: &mut [f32], delta: &[f32]) {
        for (x, delta) in x.iter_mut().zip(delta) {
            *x += delta;
        }
    }
}

/// `out = x / rms(x) · weight`, row by row.
pub(crate) fn rms_norm(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let width = weight.len();
    for_rows(pool, out, width, |rows, out| {
        let x = &x[rows.start * width..rows.end * width];
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            norm_row(isa, x, weight, eps, out);
        }
    });
}

/// Operands of a norm of the residual stream.
pub(crate) struct AddNorm<'a> {
    /// The residual stream, `[rows, width]`, which is added to.
    pub residual: &'a mut [f32],
    /// The norm's weights, `[width]`.
    pub weight: &'a [f32],
    pub eps: f32,
    /// The normed rows, `[rows, width]`.
    pub out: &'a mut [f32],
}

/// Computes `residual += Σ parts`, in the order of `parts`, then `out = rms_norm(residual)`.
/// There is at least one part, and all parts are `[rows, width]`.
pub(crate) fn add_parts_rms_norm(
    pool: &mut Pool,
    isa: Isa,
    parts: &[&[f32]],
    norm: &mut AddNorm<'_>,
) {
    let (width, weight, eps) = (norm.weight.len(), norm.weight, norm.eps);
    let residual = Shared::new(norm.residual);
    for_rows(pool, norm.out, width, |rows, out| {
        // SAFETY: `for_rows` gives each thread rows of its own.
        let residual = unsafe { residual.slice(rows.start * width..rows.end * width) };
        let both = residual
            .chunks_exact_mut(width)
            .zip(out.chunks_exact_mut(width));
        for (row, (residual, out)) in rows.zip(both) {
            let part = |rank: usize| &parts[rank][row * width..(row + 1) * width];
            match parts.len() {
                1 => add_row(isa, residual, part(0)),
                2 => add_sum_row(isa, residual, part(0), part(1)),
                ranks => {
                    sum_row(isa, part(0), part(1), out);
                    (2..ranks).for_each(|rank| add_row(isa, out, part(rank)));
                    add_row(isa, residual, out);
                }
            }
            norm_row(isa, residual, weight, eps, out);
        }
    });
}

/// Norms each head among `columns` of rows `width` wide, in place.
pub(crate) fn head_norm(
    pool: &mut Pool,
    isa: Isa,
    x: &mut [f32],
    width: usize,
    columns: Range<usize>,
    weight: &[f32],
    eps: f32,
) {
    for_rows(pool, x, width, |_, part| {
        for row in part.chunks_exact_mut(width) {
            for head in row[columns.clone()].chunks_exact_mut(weight.len()) {
                norm_row_in_place(isa, head, weight, eps);
            }
        }
    });
}

//! Root-mean-square norms (Zhang & Sennrich, arXiv:1910.07467).

use std::ops::Range;

use lockstep_backend::{CountedKeys, WholeNorms};

use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;
use crate::tensor::CpuVector;

/// Partial sums of a row; folded pairwise.
const LANES: usize = 32;

/// Sum of squares: value `i` goes to partial sum `i mod 32`.
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    sum_of(x, |x| x * x)
}

/// Sum of `f` of each value, in the order of [`sum_of_squares`].
#[inline(always)]
fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += f(chunk[lane]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
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
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

multiversion! {
    pub(crate) fn norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

multiversion! {
    /// Layer norm of a row (Ba et al., arXiv:1607.06450).
    fn layer_norm_row(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        let mean = sum_of(x, |x| x) / x.len() as f32;
        let variance = sum_of(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
        let scale = 1.0 / (variance + eps).sqrt();
        let weights = weight.iter().zip(bias);
        for ((out, x), (weight, bias)) in out.iter_mut().zip(x).zip(weights) {
            *out = (x - mean) * scale * weight + bias;
        }
    }
}

multiversion! {
    pub(crate) fn squares(x: &[f32]) -> f32 {
        sum_of_squares(x)
    }
}

multiversion! {
    pub(crate) fn scale_row(x: &mut [f32], weight: &[f32], scale: f32) {
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * scale * weight;
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

/// Norms at the end of a block, as [`lockstep_backend::BlockEnd`] has them.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// Weights `[width]` and epsilon of the norm of the block's output.
    pub output: Option<(&'a [f32], f32)>,
    /// Norm of the residual stream.
    pub next: Next<'a>,
}

/// A norm of the residual stream, with weights `[width]` and an epsilon.
#[derive(Clone, Copy)]
pub(crate) enum Next<'a> {
    /// None: the stream is read as it is.
    Copy,
    Rms(&'a [f32], f32),
    /// The second vector is the bias.
    Layer(&'a [f32], &'a [f32], f32),
}

/// Operands of the end of a block.
pub(crate) struct AddNorm<'a> {
    /// The residual stream, `[rows, width]`, which is added to.
    pub residual: &'a mut [f32],
    pub width: usize,
    pub ends: Ends<'a>,
    /// The rows for the next block, `[rows, width]`.
    pub out: &'a mut [f32],
}

/// Computes `residual += norm(Σ parts)`, in the order of `parts`, then `out = norm(residual)`.
/// All parts are `[rows, width]`; without parts nothing is added.
pub(crate) fn end_block(pool: &mut Pool, isa: Isa, parts: &[&[f32]], norm: &mut AddNorm<'_>) {
    let (width, Ends { output, next }) = (norm.width, norm.ends);
    let residual = Shared::new(norm.residual);
    for_rows(pool, norm.out, width, |rows, out| {
        // SAFETY: `for_rows` gives each thread rows of its own.
        let residual = unsafe { residual.slice(rows.start * width..rows.end * width) };
        let both = residual
            .chunks_exact_mut(width)
            .zip(out.chunks_exact_mut(width));
        for (row, (residual, out)) in rows.zip(both) {
            let part = |rank: usize| &parts[rank][row * width..(row + 1) * width];
            match (parts.len(), output) {
                (0, _) => {}
                (ranks, Some((weight, eps))) => {
                    out.copy_from_slice(part(0));
                    (1..ranks).for_each(|rank| add_row(isa, out, part(rank)));
                    norm_row_in_place(isa, out, weight, eps);
                    add_row(isa, residual, out);
                }
                (1, None) => add_row(isa, residual, part(0)),
                (2, None) => add_sum_row(isa, residual, part(0), part(1)),
                (ranks, None) => {
                    sum_row(isa, part(0), part(1), out);
                    (2..ranks).for_each(|rank| add_row(isa, out, part(rank)));
                    add_row(isa, residual, out);
                }
            }
            match next {
                Next::Copy => out.copy_from_slice(residual),
                Next::Rms(weight, eps) => norm_row(isa, residual, weight, eps, out),
                Next::Layer(weight, bias, eps) => {
                    layer_norm_row(isa, residual, weight, bias, eps, out);
                }
            }
        }
    });
}

/// See [`lockstep_backend::Ops::square_sums`]: `x` has rows of `width`, which begin with
/// `columns` of queries, then keys in heads of `head_dim`.
pub(crate) fn square_sums(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    width: usize,
    [queries, keys, head_dim]: [usize; 3],
    counted: CountedKeys,
    sums: &mut [f32],
) {
    for_rows(pool, sums, 2, |rows, part| {
        let x = &x[rows.start * width..rows.end * width];
        for (row, sums) in x.chunks_exact(width).zip(part.chunks_exact_mut(2)) {
            sums[0] = squares(isa, &row[..queries]);
            let heads = row[queries..queries + keys].chunks_exact(head_dim);
            let heads = heads.enumerate().filter(|(head, _)| counted.counts(*head));
            sums[1] = heads.fold(0.0, |sum, (_, head)| sum + squares(isa, head));
        }
    });
}

/// See [`lockstep_backend::Ops::whole_norm`]: rows of `x` are `width` wide and begin with the
/// queries, then the keys.
pub(crate) fn whole_norm(
    pool: &mut Pool,
    isa: Isa,
    x: &mut [f32],
    width: usize,
    sums: &[f32],
    norms: &WholeNorms<'_, CpuVector>,
) {
    let WholeNorms {
        queries,
        keys,
        widths,
        eps,
    } = norms;
    for_rows(pool, x, width, |rows, part| {
        let sums = &sums[2 * rows.start..2 * rows.end];
        for (row, sums) in part.chunks_exact_mut(width).zip(sums.chunks_exact(2)) {
            let scale = |at: usize| 1.0 / (sums[at] / widths[at] as f32 + eps).sqrt();
            let (query, rest) = row.split_at_mut(queries.0.len());
            scale_row(isa, query, &queries.0, scale(0));
            scale_row(isa, &mut rest[..keys.0.len()], &keys.0, scale(1));
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

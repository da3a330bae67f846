//! The gated delta rule around its recurrence. Before it are convolution, silu, norms of queries and
//! keys, strengths and decays; tokens that are to be verified leave these in their records. Behind
//! it is the gated norm.

use lockstep_backend::{GatedDelta, RowState};

use super::convolution::{Columns, Convolution, for_tokens};
use super::mamba2::softplus;
use super::states::Places;
use crate::activation::{silu, silu_in_place};
use crate::exp::exp;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::norm::{inverse_rms, sum_of_squares};
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;
use crate::tensor::CpuVector;

/// Added to the sums of squares of queries and keys.
const EPS: f32 = 1e-6;

multiversion! {
    /// `x = x / √(Σ x² + ε) · scale`.
    fn unit_in_place(x: &mut [f32], scale: f32) {
        let inverse = 1.0 / (sum_of_squares(x) + EPS).sqrt();
        x.iter_mut().for_each(|x| *x = *x * inverse * scale);
    }
}

multiversion! {
    /// Makes strengths of `b` and decays of `a`, in place.
    fn gates_in_place(b: &mut [f32], a: &mut [f32], a_log: &[f32], dt_bias: &[f32]) {
        b.iter_mut().for_each(|b| *b = 1.0 / (1.0 + exp(-*b)));
        for ((a, log), bias) in a.iter_mut().zip(a_log).zip(dt_bias) {
            *a = exp(-exp(*log) * softplus(*a + bias));
        }
    }
}

multiversion! {
    /// `x = weight · x/rms(x) · silu(gate)`.
    fn gated_norm(x: &mut [f32], weight: &[f32], eps: f32, gate: &[f32]) {
        let scale = inverse_rms(x, eps);
        for ((x, weight), gate) in x.iter_mut().zip(weight).zip(gate) {
            *x = *x * scale * weight * silu(*gate);
        }
    }
}

/// Prepares all tokens of all rows. `projected` and the column of `zeros` are read; `gates` become
/// strengths and decays, and `space` queries, keys and values.
pub(super) fn prepare(
    pool: &mut Pool,
    isa: Isa,
    places: &Places<'_>,
    op: &GatedDelta<'_, CpuVector>,
    [projected, zeros]: [&[f32]; 2],
    [gates, space]: [&mut [f32]; 2],
    inputs: &CpuInputs,
) {
    let (channels, heads) = (op.shape.channels(), 2 * op.shape.value_heads);
    let gates = Shared::new(gates);
    let convolution = Convolution {
        isa,
        places,
        taps: &op.convolution.0,
        bias: None,
        columns: Columns {
            values: projected,
            width: channels + op.shape.value_width(),
        },
        zeros,
        inputs,
    };
    for_tokens(pool, inputs, space, channels, |row, state, node, space| {
        convolution.run(row, state, node, space);
        convolution.record(row, state, node);
        silu_in_place(isa, space);
        let token = row.start as usize + node;
        // SAFETY: each token is one thread's.
        let gates = unsafe { gates.slice(token * heads..(token + 1) * heads) };
        inputs_of(isa, places, op, state, node, gates, space);
    });
}

/// Makes queries, keys, strengths and decays of a token, and leaves them in its record if it is to
/// be verified.
fn inputs_of(
    isa: Isa,
    places: &Places<'_>,
    op: &GatedDelta<'_, CpuVector>,
    state: &RowState,
    node: usize,
    gates: &mut [f32],
    space: &mut [f32],
) {
    let shape = &op.shape;
    let (queries, rest) = space.split_at_mut(shape.key_width());
    let keys = &mut rest[..shape.key_width()];
    let scale = (shape.key_dim as f32).sqrt().recip();
    for query in queries.chunks_exact_mut(shape.key_dim) {
        unit_in_place(isa, query, scale);
    }
    for key in keys.chunks_exact_mut(shape.key_dim) {
        unit_in_place(isa, key, 1.0);
    }
    let (b, a) = gates.split_at_mut(shape.value_heads);
    gates_in_place(isa, b, a, &op.a_log.0, &op.dt_bias.0);
    if !state.commits {
        let record = places.record(state, state.side, node as u32);
        // SAFETY: each token writes its own record, and replays read the other half.
        unsafe {
            places.records.slice(record.keys).copy_from_slice(keys);
            places.records.slice(record.decays).copy_from_slice(a);
        }
    }
}

/// Norms and gates the output of all heads, in place. The gates are behind the channels of
/// `projected`.
pub(super) fn finish(
    pool: &mut Pool,
    isa: Isa,
    op: &GatedDelta<'_, CpuVector>,
    projected: &[f32],
    out: &mut [f32],
) {
    let (channels, values) = (op.shape.channels(), op.shape.value_width());
    let dim = op.shape.value_dim;
    for_rows(pool, out, values, |tokens, part| {
        for (token, row) in tokens.zip(part.chunks_exact_mut(values)) {
            let gates = &projected[token * (channels + values) + channels..][..values];
            for (head, gate) in row.chunks_exact_mut(dim).zip(gates.chunks_exact(dim)) {
                gated_norm(isa, head, &op.norm.0, op.eps, gate);
            }
        }
    });
}

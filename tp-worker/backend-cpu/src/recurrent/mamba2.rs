//! Mamba-2 around its recurrence. Before it are convolution, silu, steps and decays; tokens that are
//! to be verified leave these in their records. Behind it are the gates.

use lockstep_backend::{DeltaShape, Mamba2};

use super::convolution::{Columns, Convolution, for_tokens};
use super::states::Places;
use crate::activation::{silu, silu_in_place};
use crate::exp::exp;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;
use crate::tensor::CpuVector;

multiversion! {
    /// Makes steps of projections, in place.
    fn steps_in_place(steps: &mut [f32], dt_bias: &[f32]) {
        for (step, bias) in steps.iter_mut().zip(dt_bias) {
            *step = softplus(*step + bias);
        }
    }
}

multiversion! {
    /// Makes decays of steps, in place.
    fn decays_in_place(steps: &mut [f32], a_log: &[f32]) {
        for (step, log) in steps.iter_mut().zip(a_log) {
            *step = exp(-exp(*log) * *step);
        }
    }
}

multiversion! {
    /// `out = skip · x`, then `x = step · x`: the output without a state, and the update.
    fn split_in_place(x: &mut [f32], skip: f32, step: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = skip * *x;
            *x *= step;
        }
    }
}

multiversion! {
    /// `x = x · silu(gate)`.
    fn gate_in_place(x: &mut [f32], gate: &[f32]) {
        for (x, gate) in x.iter_mut().zip(gate) {
            *x *= silu(*gate);
        }
    }
}

/// `ln(1 + eˣ)`, within some ulp: `max(x, 0) + ln(1 + e^−|x|)`, with the series of the inverse
/// hyperbolic tangent. Plain arithmetic, so that every instruction set gives the same bits.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    let t = exp(-x.abs());
    // ln(1 + t) = 2 · artanh(t / (2 + t)), whose argument is at most a third.
    let s = t / (2.0 + t);
    let square = s * s;
    let mut series = 1.0 / 17.0;
    for odd in [15.0f32, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series * square + 1.0 / odd;
    }
    x.max(0.0) + 2.0 * s * series
}

/// Prepares all tokens of all rows. `projected` and the column of `zeros` are read. `steps` become
/// decays, `space` `C`, `B` and updates, and `out` what is added to the states' output.
pub(super) fn prepare(
    pool: &mut Pool,
    isa: Isa,
    places: &Places<'_>,
    op: &Mamba2<'_, CpuVector>,
    [projected, zeros]: [&[f32]; 2],
    [steps, space, out]: [&mut [f32]; 3],
    inputs: &CpuInputs,
) {
    let shape = &op.shape;
    let (channels, values, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
    let (steps, out) = (Shared::new(steps), Shared::new(out));
    let convolution = Convolution {
        isa,
        places,
        taps: &op.convolution.0,
        bias: op.convolution_bias.map(|bias| &*bias.0),
        columns: Columns {
            values: projected,
            width: channels + values,
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
        let (steps, out) = unsafe {
            let steps = steps.slice(token * heads..(token + 1) * heads);
            (steps, out.slice(token * values..(token + 1) * values))
        };
        steps_in_place(isa, steps, &op.dt_bias.0);
        let (keys, updates) = space[shape.key_width()..].split_at_mut(shape.key_width());
        let of_heads = updates.chunks_exact_mut(shape.value_dim);
        let of_heads = of_heads.zip(out.chunks_exact_mut(shape.value_dim));
        for ((x, out), (step, skip)) in of_heads.zip(steps.iter().zip(&*op.skip.0)) {
            split_in_place(isa, x, *skip, *step, out);
        }
        decays_in_place(isa, steps, &op.a_log.0);
        if !state.commits {
            let record = places.record(state, state.side, node as u32);
            // SAFETY: each token writes its own record, and replays read the other half.
            unsafe {
                places.records.slice(record.keys).copy_from_slice(keys);
                places
                    .records
                    .slice(record.updates)
                    .copy_from_slice(updates);
                places.records.slice(record.decays).copy_from_slice(steps);
            }
        }
    });
}

/// Gates the output of all heads, in place. The gates are behind the channels of `projected`.
pub(super) fn gate(
    pool: &mut Pool,
    isa: Isa,
    shape: &DeltaShape,
    projected: &[f32],
    out: &mut [f32],
) {
    let (channels, values) = (shape.channels(), shape.value_width());
    for_rows(pool, out, values, |tokens, part| {
        for (token, row) in tokens.zip(part.chunks_exact_mut(values)) {
            let gates = &projected[token * (channels + values) + channels..][..values];
            gate_in_place(isa, row, gates);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_near_the_logarithm_and_never_negative() {
        // Below, exponentials are exactly zero.
        for step in -3480..4000 {
            let x = step as f32 / 40.0;
            let expected = f64::from(x).exp().ln_1p();
            let found = f64::from(softplus(x));
            assert!(
                (found - expected).abs() <= 4e-7 * expected + 1e-38,
                "{x}: {found} {expected}"
            );
        }
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
        assert!(softplus(f32::NAN).is_nan());
    }
}

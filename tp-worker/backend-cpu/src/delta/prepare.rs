//! The part before the recurrence: convolution, silu, norms of queries and keys, strengths and
//! decays. Tokens that are to be verified leave these in their records.

use lockstep_backend::{DeltaShape, GatedDelta, Row, RowState};
use lockstep_types::GatedDeltaSpec;

use super::states::Places;
use crate::activation::silu;
use crate::exp::exp;
use crate::inputs::CpuInputs;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::norm::sum_of_squares;
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;
use crate::tensor::CpuVector;

/// Added to the sums of squares of queries and keys.
const EPS: f32 = 1e-6;

multiversion! {
    /// `out = taps · column`, the oldest column of a convolution.
    fn first_tap(taps: &[f32], column: &[f32], out: &mut [f32]) {
        for ((out, tap), x) in out.iter_mut().zip(taps).zip(column) {
            *out = tap * x;
        }
    }
}

multiversion! {
    /// `out += taps · column`, fused.
    fn next_tap(taps: &[f32], column: &[f32], out: &mut [f32]) {
        for ((out, tap), x) in out.iter_mut().zip(taps).zip(column) {
            *out = tap.mul_add(*x, *out);
        }
    }
}

multiversion! {
    fn silu_in_place(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = silu(*x));
    }
}

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

/// `ln(1 + eˣ)`, within some ulp: `max(x, 0) + ln(1 + e^−|x|)`, with the series of the inverse
/// hyperbolic tangent. Plain arithmetic, so that every instruction set gives the same bits.
#[inline(always)]
fn softplus(x: f32) -> f32 {
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

/// Prepares all tokens of all rows. `projected` and the column of `zeros` are read; `gates` become
/// strengths and decays, and `space` queries, keys and values.
pub(super) fn run(
    pool: &mut Pool,
    isa: Isa,
    places: &Places<'_>,
    op: &GatedDelta<'_, CpuVector>,
    [projected, zeros]: [&[f32]; 2],
    [gates, space]: [&mut [f32]; 2],
    inputs: &CpuInputs,
) {
    let channels = op.shape.channels();
    let heads = 2 * op.shape.value_heads;
    let gates = Shared::new(gates);
    let call = Call {
        isa,
        places,
        op,
        projected,
        zeros,
        inputs,
    };
    for_rows(pool, space, channels, |tokens, part| {
        let mut index = call.row_of(tokens.start);
        for (token, space) in tokens.zip(part.chunks_exact_mut(channels)) {
            while index < inputs.rows.len() && call.end(index) <= token {
                index += 1;
            }
            let row = inputs.rows.get(index);
            let Some(row) = row.filter(|row| row.start as usize <= token) else {
                continue;
            };
            // SAFETY: each token is one thread's.
            let gates = unsafe { gates.slice(token * heads..(token + 1) * heads) };
            let node = token - row.start as usize;
            call.token(row, &inputs.states[index], node, gates, space);
        }
    });
}

/// Operands that all tokens share.
struct Call<'a> {
    isa: Isa,
    places: &'a Places<'a>,
    op: &'a GatedDelta<'a, CpuVector>,
    projected: &'a [f32],
    zeros: &'a [f32],
    inputs: &'a CpuInputs,
}

impl Call<'_> {
    /// Index of the token behind row `index`.
    fn end(&self, index: usize) -> usize {
        let row = &self.inputs.rows[index];
        (row.start + row.q_len) as usize
    }

    /// Index of the first row that ends behind `token`.
    fn row_of(&self, token: usize) -> usize {
        let rows = &self.inputs.rows;
        rows.partition_point(|row| (row.start + row.q_len) as usize <= token)
    }

    /// Prepares token `node` of a row.
    fn token(
        &self,
        row: &Row,
        state: &RowState,
        node: usize,
        gates: &mut [f32],
        space: &mut [f32],
    ) {
        let (isa, shape) = (self.isa, &self.op.shape);
        self.convolve(row, state, node, space);
        silu_in_place(isa, space);
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
        gates_in_place(isa, b, a, &self.op.a_log.0, &self.op.dt_bias.0);
        if !state.commits {
            let record = self.places.record(state, state.side, node as u32);
            let records = &self.places.records;
            // SAFETY: each token writes its own record, and replays read the other half.
            unsafe {
                records.slice(record.keys).copy_from_slice(keys);
                records.slice(record.decays).copy_from_slice(a);
                let column = self.column(row, node);
                records.slice(record.column).copy_from_slice(column);
            }
        }
    }

    /// Column of token `node` of a row, before the convolution.
    fn column(&self, row: &Row, node: usize) -> &[f32] {
        let DeltaShape { .. } = self.op.shape;
        let channels = self.op.shape.channels();
        let width = channels + self.op.shape.value_width();
        &self.projected[(row.start as usize + node) * width..][..channels]
    }

    /// Column of the committed token that is `back` tokens before the row's first.
    fn committed(&self, state: &RowState, back: usize) -> &[f32] {
        let replays = state.replays.of(&self.inputs.replays);
        if let Some(node) = replays.len().checked_sub(back + 1) {
            let record = self.places.replayed(state, replays[node]);
            // SAFETY: nobody writes this half of the records in this call.
            return unsafe { self.places.records.read(record.column) };
        }
        let (back, channels) = (back - replays.len(), self.op.shape.channels());
        match (self.op.shape.taps - 1).checked_sub(back + 1) {
            Some(at) if !state.fresh => {
                let start = self.places.columns(state.state).start + at * channels;
                // SAFETY: states are written behind this part of the call.
                unsafe { self.places.columns.read(start..start + channels) }
            }
            _ => &self.zeros[..channels],
        }
    }

    /// Convolves the channels of token `node` of a row with those of the tokens before it.
    fn convolve(&self, row: &Row, state: &RowState, node: usize, out: &mut [f32]) {
        let (taps, channels) = (self.op.shape.taps, self.op.shape.channels());
        let mut window = [self.zeros; GatedDeltaSpec::MOST_TAPS];
        let window = &mut window[..taps];
        let (mut own, mut back) = (Some(node), 0);
        for column in window.iter_mut().rev() {
            *column = match own {
                Some(node) => self.column(row, node),
                None => {
                    back += 1;
                    self.committed(state, back - 1)
                }
            };
            own = own.and_then(|last| self.inputs.ancestor(row, node, last));
        }
        let all = self.op.convolution.0.chunks_exact(channels);
        for (tap, (taps, column)) in all.zip(window.iter()).enumerate() {
            match tap {
                0 => first_tap(self.isa, taps, column, out),
                _ => next_tap(self.isa, taps, column, out),
            }
        }
    }
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

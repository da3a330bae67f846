//! Gated DeltaNet of the naive backend.

use lockstep_backend::{DeltaOperands, DeltaShape, GatedDelta, Recurrence};

use super::arithmetic::{activated, dot, normed};
use super::recurrent::{Fault, Record, State, States, run as run_rows};
use super::{Inputs, OPERAND, SUM, Tensor};
use lockstep_types::Activation;

/// Returns `silu` of each value.
pub fn activated_all(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| activated(Activation::Silu, *x)).collect()
}

/// One call.
struct Call<'a> {
    op: &'a GatedDelta<'a, Vec<f32>>,
    projected: &'a Tensor,
    gates: &'a Tensor,
    fault: Option<Fault>,
}

impl Call<'_> {
    /// Runs token `token` of the batch behind `state`, and returns its output, the state behind it and
    /// its record.
    fn token(&self, state: &State, token: usize) -> (Vec<f32>, State, Record) {
        let op = self.op;
        let fault = |fault| self.fault == Some(fault);
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps: _,
        } = op.shape;
        let (row, channels) = (self.projected.row(token), op.shape.channels());
        let (column, z) = row.split_at(channels);
        let convolved = state.convolved(column, op.convolution, self.fault);
        let x: Vec<f32> = match fault(Fault::Activation) {
            true => convolved,
            false => activated_all(&convolved),
        };
        let unit = |head: usize| {
            let x = &x[head * key_dim..(head + 1) * key_dim];
            let length = (dot(x, x) + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect::<Vec<f32>>()
        };
        let keys: Vec<Vec<f32>> = (key_heads..2 * key_heads).map(unit).collect();
        let (mut out, mut updates, mut decays) = (Vec::new(), Vec::new(), Vec::new());
        let mut after = state.clone();
        for head in 0..value_heads {
            let of = match fault(Fault::KeyHeadModulo) {
                true => head % key_heads,
                false => head / (value_heads / key_heads),
            };
            let scale = match fault(Fault::QueryScale) {
                true => 1.0,
                false => (key_dim as f32).sqrt(),
            };
            let query: Vec<f32> = unit(of).iter().map(|q| q / scale).collect();
            let values = &x[2 * key_heads * key_dim + head * value_dim..][..value_dim];
            let gates = self.gates.row(token);
            let (mut b, mut a) = (gates[head], gates[value_heads + head]);
            if fault(Fault::GatesSwapped) {
                (b, a) = (a, b);
            }
            let strength = 1.0 / (1.0 + (-b).exp());
            let softplus = (a + op.dt_bias[head]).exp().ln_1p();
            let decay = (-op.a_log[head].exp() * softplus).exp();
            let matrix = &mut after.matrices[head];
            let decayed = |matrix: &mut Vec<Vec<f32>>| {
                let all = matrix.iter_mut().flatten();
                all.for_each(|value| *value *= decay);
            };
            let columns = |matrix: &[Vec<f32>], by: &[f32]| -> Vec<f32> {
                let column = |at: usize| matrix.iter().zip(by).map(|(row, by)| row[at] * by).sum();
                (0..value_dim).map(column).collect()
            };
            let mut found = columns(matrix, &keys[of]);
            if !fault(Fault::DecayAfter) {
                decayed(matrix);
            }
            if !fault(Fault::FoundBeforeDecay) {
                found = columns(matrix, &keys[of]);
            }
            let before = columns(matrix, &query);
            let update = values.iter().zip(found);
            let update: Vec<f32> = update.map(|(v, found)| strength * (v - found)).collect();
            for (row, key) in matrix.iter_mut().zip(&keys[of]) {
                let values = row.iter_mut().zip(&update);
                values.for_each(|(value, update)| *value += key * update);
            }
            if fault(Fault::DecayAfter) {
                decayed(matrix);
            }
            let mut output = match fault(Fault::OutputBefore) {
                true => before,
                false => columns(matrix, &query),
            };
            let gate = &z[head * value_dim..(head + 1) * value_dim];
            let silu = activated_all(gate);
            let gated = |output: &mut Vec<f32>| {
                let values = output.iter_mut().zip(&silu);
                values.for_each(|(output, gate)| *output *= gate);
            };
            if fault(Fault::GateBeforeNorm) {
                gated(&mut output);
            }
            let offset = if fault(Fault::NormOffset) { 1.0 } else { 0.0 };
            let weight: Vec<f32> = op.norm.iter().map(|weight| weight + offset).collect();
            output = normed(&output, &weight, op.eps);
            if !fault(Fault::GateBeforeNorm) {
                gated(&mut output);
            }
            out.extend(output);
            updates.extend(update);
            decays.push(decay);
        }
        let record = Record {
            keys: keys.concat(),
            updates,
            decays,
            column: column.to_vec(),
        };
        after.push(column.to_vec());
        (out, after, record)
    }
}

/// See [`lockstep_backend::Ops::gated_delta`].
pub fn run(
    fault: Option<Fault>,
    states: &mut States,
    layer: usize,
    op: &GatedDelta<'_, Vec<f32>>,
    operands: &DeltaOperands<'_, Tensor>,
    inputs: &Inputs,
    out: &mut Tensor,
) {
    operands.projected.holds(SUM);
    operands.gates.holds(SUM);
    operands.space.holds(SUM);
    out.holds(OPERAND);
    let call = Call {
        op,
        projected: operands.projected,
        gates: &*operands.gates,
        fault,
    };
    let rule = Recurrence::Delta(op.shape);
    run_rows(&rule, states, layer, inputs, out, |state, token| {
        call.token(state, token)
    });
}

//! Mamba-2 of the naive backend, and norms of groups.

use lockstep_backend::{
    ColumnGroups, DeltaShape, Mamba2, Mamba2Operands, Recurrence, RmsNorm, ShortConvolution,
};

use super::delta::activated_all;
use super::recurrent::{Fault, Record, State, States, run as run_rows};
use super::{Inputs, OPERAND, SUM, Tensor};

/// One call.
struct Call<'a> {
    op: &'a Mamba2<'a, Vec<f32>>,
    projected: &'a Tensor,
    steps: &'a Tensor,
    fault: Option<Fault>,
}

impl Call<'_> {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// `C`, `B` and `x` of a token behind the convolution.
    fn convolved(&self, state: &State, column: &[f32]) -> Vec<f32> {
        let mut x = state.convolved(column, self.op.convolution, self.fault);
        let bias = self.op.convolution_bias;
        if let Some(bias) = bias.filter(|_| !self.has(Fault::ConvolutionBias)) {
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        if self.has(Fault::Activation) {
            return x;
        }
        activated_all(&x)
    }

    /// Runs token `token` of the batch behind `state`, and returns its output, the state behind it
    /// and its record.
    fn token(&self, state: &State, token: usize) -> (Vec<f32>, State, Record) {
        let op = self.op;
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps: _,
        } = op.shape;
        let (column, z) = self.projected.row(token).split_at(op.shape.channels());
        let x = self.convolved(state, column);
        let (mut queries, rest) = x.split_at(key_heads * key_dim);
        let (mut keys, x) = rest.split_at(key_heads * key_dim);
        if self.has(Fault::KeysAndQueries) {
            (queries, keys) = (keys, queries);
        }
        let gates = match self.has(Fault::NormBeforeGate) {
            true => vec![1.0; z.len()],
            false => activated_all(z),
        };
        let mut after = state.clone();
        let (mut out, mut updates, mut decays) = (Vec::new(), Vec::new(), Vec::new());
        for head in 0..value_heads {
            let group = match self.has(Fault::GroupModulo) {
                true => head % key_heads,
                false => head / (value_heads / key_heads),
            };
            let bias = match self.has(Fault::StepBias) {
                true => 0.0,
                false => op.dt_bias[head],
            };
            let step = (self.steps.row(token)[head] + bias).exp().ln_1p();
            let decay = (-op.a_log[head].exp() * step).exp();
            let factor = if self.has(Fault::UpdateWithoutStep) {
                1.0
            } else {
                step
            };
            let matrix = &mut after.matrices[head];
            for at in 0..value_dim {
                let x = x[head * value_dim + at];
                updates.push(factor * x);
                let mut sum = match self.has(Fault::Skip) {
                    true => 0.0,
                    false => op.skip[head] * x,
                };
                let mut before = sum;
                for (row, values) in matrix.iter_mut().enumerate() {
                    let value = &mut values[at];
                    let place = group * key_dim + row;
                    before += *value * decay * queries[place];
                    *value = match self.has(Fault::DecayAfter) {
                        true => (*value + keys[place] * factor * x) * decay,
                        false => *value * decay + keys[place] * factor * x,
                    };
                    sum += *value * queries[place];
                }
                if self.has(Fault::OutputBefore) {
                    sum = before;
                }
                out.push(sum * gates[head * value_dim + at]);
            }
            decays.push(decay);
        }
        let record = Record {
            keys: keys.to_vec(),
            updates,
            decays,
            column: column.to_vec(),
        };
        after.push(column.to_vec());
        (out, after, record)
    }
}

/// See [`lockstep_backend::Ops::mamba2`]. Returns the gates of all tokens if they were left out, to be
/// applied behind the norm.
pub fn run(
    fault: Option<Fault>,
    states: &mut States,
    layer: usize,
    op: &Mamba2<'_, Vec<f32>>,
    operands: &Mamba2Operands<'_, Tensor>,
    inputs: &Inputs,
    out: &mut Tensor,
) -> Vec<Vec<f32>> {
    operands.projected.holds(SUM);
    operands.steps.holds(SUM);
    operands.space.holds(SUM);
    out.holds(SUM);
    let call = Call {
        op,
        projected: operands.projected,
        steps: &*operands.steps,
        fault,
    };
    let rule = Recurrence::Mamba2(op.shape);
    run_rows(&rule, states, layer, inputs, out, |state, token| {
        call.token(state, token)
    });
    if fault != Some(Fault::NormBeforeGate) {
        return Vec::new();
    }
    let gates = |row| activated_all(&operands.projected.row(row)[op.shape.channels()..]);
    (0..operands.projected.rows).map(gates).collect()
}

/// Multiplies the rows of `out` by `gates`, if there are some.
pub fn gate_late(gates: &[Vec<f32>], out: &mut Tensor) {
    for (row, gates) in gates.iter().enumerate() {
        let values = out.row_mut(row).iter_mut().zip(gates);
        values.for_each(|(out, gate)| *out *= gate);
    }
}

/// See [`lockstep_backend::Ops::group_square_sums`].
pub fn group_square_sums(x: &Tensor, groups: &ColumnGroups, sums: &mut Tensor) {
    x.holds(SUM);
    sums.holds(SUM);
    assert_eq!((sums.rows, sums.width), (x.rows, groups.count));
    for row in 0..x.rows {
        let mut all = vec![0.0; groups.count];
        for (column, x) in x.row(row).iter().enumerate() {
            all[(groups.first + column) / groups.width] += x * x;
        }
        sums.row_mut(row).copy_from_slice(&all);
    }
}

/// See [`lockstep_backend::Ops::group_norm`].
pub fn group_norm(
    fault: Option<Fault>,
    x: &Tensor,
    groups: &ColumnGroups,
    sums: &Tensor,
    norm: RmsNorm<'_, Vec<f32>>,
    out: &mut Tensor,
) {
    x.holds(SUM);
    sums.holds(SUM);
    out.holds(OPERAND);
    for row in 0..x.rows {
        let of_group = |column: usize| {
            let sums = sums.row(row);
            let (sum, width) = if fault == Some(Fault::OneGroup) {
                (sums.iter().sum(), groups.width * groups.count)
            } else {
                (sums[(groups.first + column) / groups.width], groups.width)
            };
            (sum / width as f32 + norm.eps).sqrt()
        };
        let normed = |(column, x): (usize, &f32)| x / of_group(column) * norm.weight[column];
        let values: Vec<f32> = x.row(row).iter().enumerate().map(normed).collect();
        out.row_mut(row).copy_from_slice(&values);
    }
}

/// See [`lockstep_backend::Ops::short_convolution`].
pub fn short_convolution(
    fault: Option<Fault>,
    states: &mut States,
    layer: usize,
    op: &ShortConvolution<'_, Vec<f32>>,
    [projected, space]: [&Tensor; 2],
    inputs: &Inputs,
    out: &mut Tensor,
) {
    projected.holds(SUM);
    space.holds(SUM);
    out.holds(OPERAND);
    let channels = op.shape.channels;
    let token_of = |state: &State, token: usize| {
        let (mut b, rest) = projected.row(token).split_at(channels);
        let (mut c, x) = rest.split_at(channels);
        if fault == Some(Fault::PartsSwapped) {
            (b, c) = (c, b);
        }
        let column: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
        let mut out = state.convolved(&column, op.convolution, fault);
        if let Some(bias) = op.bias.filter(|_| fault != Some(Fault::ConvolutionBias)) {
            out.iter_mut()
                .zip(bias)
                .for_each(|(out, bias)| *out += bias);
        }
        if fault == Some(Fault::Activation) {
            out = activated_all(&out);
        }
        out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
        let mut after = state.clone();
        after.push(column.clone());
        let record = Record {
            keys: Vec::new(),
            updates: Vec::new(),
            decays: Vec::new(),
            column,
        };
        (out, after, record)
    };
    let rule = Recurrence::Convolution(op.shape);
    run_rows(&rule, states, layer, inputs, out, token_of);
}

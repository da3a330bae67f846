//! Gated DeltaNet of the naive backend: whole copies of states, one token after the other.

use lockstep_backend::{DeltaOperands, DeltaShape, GatedDelta, RowState, StatesShape};

use super::arithmetic::{activated, dot, normed};
use super::{Inputs, OPERAND, SUM, Tensor};
use lockstep_types::Activation;

/// A mistake of the operation, for tests that have to see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The state decays behind the update instead of before it.
    DecayAfter,
    /// The update is the value minus what the state has before it decays.
    FoundBeforeDecay,
    /// The output is read before the update.
    OutputBefore,
    /// The convolution leaves out its oldest tap.
    OldestTap,
    /// Queries are as long as keys.
    QueryScale,
    /// Value head `h` reads key head `h mod key_heads`.
    KeyHeadModulo,
    /// The output is gated before it is normed.
    GateBeforeNorm,
    /// Strengths and decays change places.
    GatesSwapped,
    /// The norm's weights are distances from one.
    NormOffset,
    /// Output gates of attention and of shared experts are left out.
    OutputGates,
}

/// All that a layer keeps of a text: a matrix of each value head, and raw columns.
#[derive(Clone)]
struct State {
    /// `[value_heads][key_dim][value_dim]`
    matrices: Vec<Vec<Vec<f32>>>,
    /// The last raw columns, the oldest first.
    columns: Vec<Vec<f32>>,
}

/// All that a node adds to a state.
#[derive(Clone)]
struct Record {
    keys: Vec<f32>,
    updates: Vec<f32>,
    decays: Vec<f32>,
    column: Vec<f32>,
}

/// States and records, `[layer][state]` and `[layer][slot][side][node]`.
pub struct States {
    states: Vec<Vec<State>>,
    records: Vec<Vec<[Vec<Option<Record>>; 2]>>,
}

impl State {
    fn zero(shape: &DeltaShape) -> Self {
        let matrix = vec![vec![0.0; shape.value_dim]; shape.key_dim];
        Self {
            matrices: vec![matrix; shape.value_heads],
            columns: vec![vec![0.0; shape.channels()]; shape.taps - 1],
        }
    }

    /// Adds a column.
    fn push(&mut self, column: Vec<f32>) {
        self.columns.remove(0);
        self.columns.push(column);
    }

    fn replay(&mut self, shape: &DeltaShape, record: &Record) {
        let each = shape.value_heads / shape.key_heads;
        for (head, matrix) in self.matrices.iter_mut().enumerate() {
            let keys = &record.keys[head / each * shape.key_dim..];
            let updates = &record.updates[head * shape.value_dim..];
            for (row, key) in matrix.iter_mut().zip(keys) {
                for (value, update) in row.iter_mut().zip(updates) {
                    *value = *value * record.decays[head] + key * update;
                }
            }
        }
        self.push(record.column.clone());
    }
}

impl States {
    pub fn new(shape: &StatesShape) -> Self {
        let limits = shape.limits;
        let mut nothing = State::zero(&shape.delta);
        // NaN shows reads of memory that was never written.
        let matrices = nothing.matrices.iter_mut().flatten();
        let all = matrices.chain(&mut nothing.columns);
        all.for_each(|values| values.fill(f32::NAN));
        let sides = [vec![None; limits.nodes], vec![None; limits.nodes]];
        Self {
            states: vec![vec![nothing; limits.states]; shape.layers],
            records: vec![vec![sides; limits.records]; shape.layers],
        }
    }

    pub fn copy(&mut self, moves: &[(u32, u32)]) {
        for layer in &mut self.states {
            for (from, to) in moves {
                layer[*to as usize] = layer[*from as usize].clone();
            }
        }
    }
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
            taps,
        } = op.shape;
        let (row, channels) = (self.projected.row(token), op.shape.channels());
        let (column, z) = row.split_at(channels);
        let mut window = state.columns.clone();
        window.push(column.to_vec());
        let convolved = |channel: usize| {
            let first = usize::from(fault(Fault::OldestTap));
            let products = (first..taps).map(|tap| {
                let own = &window[tap];
                own[channel] * op.convolution[tap * channels + channel]
            });
            activated(Activation::Silu, products.sum())
        };
        let x: Vec<f32> = (0..channels).map(convolved).collect();
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
            let silu: Vec<f32> = gate
                .iter()
                .map(|z| activated(Activation::Silu, *z))
                .collect();
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
    operands: DeltaOperands<'_, Tensor>,
    inputs: &Inputs,
    out: &mut Tensor,
) {
    operands.projected.holds(SUM);
    operands.gates.holds(SUM);
    operands.space.holds(SUM);
    out.holds(OPERAND);
    assert_eq!(inputs.states.len(), inputs.rows.len());
    let shape = op.shape;
    let call = Call {
        op,
        projected: operands.projected,
        gates: operands.gates,
        fault,
    };
    for (row, own) in inputs.rows.iter().zip(&inputs.states) {
        let RowState { records, side, .. } = *own;
        let (records, side) = (records as usize, side as usize);
        let mut state = match own.fresh {
            true => State::zero(&shape),
            false => states.states[layer][own.state as usize].clone(),
        };
        let mut keeps = own.keeps.of(&inputs.keeps).iter().peekable();
        let mut stand = 0;
        let mut keep = |states: &mut States, state: &State, stand: u32| {
            while let Some(keep) = keeps.next_if(|keep| keep.after == stand) {
                states.states[layer][keep.state as usize] = state.clone();
            }
        };
        keep(states, &state, stand);
        for node in own.replays.of(&inputs.replays) {
            let record = &states.records[layer][records][1 - side][*node as usize];
            state.replay(&shape, record.as_ref().unwrap());
            stand += 1;
            keep(states, &state, stand);
        }
        let mut paths: Vec<State> = Vec::new();
        for node in 0..row.q_len as usize {
            let parent = inputs.parent(row, node).filter(|_| !own.commits);
            let before = parent.map_or(&state, |parent| &paths[parent]);
            let token = row.start as usize + node;
            let (output, after, record) = call.token(before, token);
            out.row_mut(token).copy_from_slice(&output);
            if own.commits {
                state = after;
                stand += 1;
                keep(states, &state, stand);
            } else {
                states.records[layer][records][side][node] = Some(record);
                paths.push(after);
            }
        }
        states.states[layer][own.state as usize] = state;
    }
}

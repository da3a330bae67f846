//! Recurrent layers of the naive backend: whole copies of states, one token after the other.

use lockstep_backend::{ConvolutionShape, DeltaShape, Recurrence, RowState, StatesShape};

use super::{Inputs, Tensor};

/// A mistake of an operation, for tests that have to see it.
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
    /// The output of Mamba-2 is normed before it is gated.
    NormBeforeGate,
    /// All columns of Mamba-2 are normed together.
    OneGroup,
    /// Head `h` of Mamba-2 reads group `h mod groups`.
    GroupModulo,
    /// `B` and `C` change places.
    KeysAndQueries,
    /// `x` is not added to the output of Mamba-2.
    Skip,
    /// Steps have no bias.
    StepBias,
    /// The update is not multiplied by its step.
    UpdateWithoutStep,
    /// The convolution has no bias.
    ConvolutionBias,
    /// The convolution has no activation, or one where it has none.
    Activation,
    /// The first and the second of the three parts of a short convolution change places.
    PartsSwapped,
    /// The taps of the convolution stand in reverse order.
    TapsReversed,
}

/// All that a layer keeps of a text: a matrix of each value head, and raw columns.
#[derive(Clone)]
pub struct State {
    /// `[value_heads][key_dim][value_dim]`
    pub matrices: Vec<Vec<Vec<f32>>>,
    /// The last raw columns, the oldest first.
    pub columns: Vec<Vec<f32>>,
}

/// All that a node adds to a state.
#[derive(Clone)]
pub struct Record {
    pub keys: Vec<f32>,
    pub updates: Vec<f32>,
    pub decays: Vec<f32>,
    pub column: Vec<f32>,
}

/// States and records, `[layer][state]` and `[layer][slot][side][node]`.
pub struct States {
    states: Vec<Vec<State>>,
    records: Vec<Vec<[Vec<Option<Record>>; 2]>>,
}

impl State {
    fn zero(rule: &Recurrence) -> Self {
        let matrices = |shape: &DeltaShape| {
            let matrix = vec![vec![0.0; shape.value_dim]; shape.key_dim];
            vec![matrix; shape.value_heads]
        };
        let ConvolutionShape { channels, taps } = rule.convolution();
        Self {
            matrices: rule.heads().map_or_else(Vec::new, matrices),
            columns: vec![vec![0.0; channels]; taps - 1],
        }
    }

    /// Adds a column.
    pub fn push(&mut self, column: Vec<f32>) {
        self.columns.remove(0);
        self.columns.push(column);
    }

    fn replay(&mut self, rule: &Recurrence, record: &Record) {
        for (head, matrix) in self.matrices.iter_mut().enumerate() {
            let shape = rule.heads().unwrap();
            let each = shape.value_heads / shape.key_heads;
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
        let mut nothing = State::zero(&shape.recurrence);
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

impl State {
    /// Returns the sum of each channel over the taps, where the token brings `column`.
    pub fn convolved(&self, column: &[f32], taps: &[f32], fault: Option<Fault>) -> Vec<f32> {
        let mut window = self.columns.clone();
        window.push(column.to_vec());
        if fault == Some(Fault::TapsReversed) {
            window.reverse();
        }
        let first = usize::from(fault == Some(Fault::OldestTap));
        let channel = |channel: usize| {
            let products = (first..window.len())
                .map(|tap| window[tap][channel] * taps[tap * column.len() + channel]);
            products.sum()
        };
        (0..column.len()).map(channel).collect()
    }
}

/// Runs the rows of a batch by `rule`. `token_of` returns the output of a token behind a state, the
/// state behind the token, and its record.
pub fn run(
    rule: &Recurrence,
    states: &mut States,
    layer: usize,
    inputs: &Inputs,
    out: &mut Tensor,
    token_of: impl Fn(&State, usize) -> (Vec<f32>, State, Record),
) {
    assert_eq!(inputs.states.len(), inputs.rows.len());
    for (row, own) in inputs.rows.iter().zip(&inputs.states) {
        let RowState { records, side, .. } = *own;
        let (records, side) = (records as usize, side as usize);
        let mut state = match own.fresh {
            true => State::zero(rule),
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
            state.replay(rule, record.as_ref().unwrap());
            stand += 1;
            keep(states, &state, stand);
        }
        let mut paths: Vec<State> = Vec::new();
        for node in 0..row.q_len as usize {
            let parent = inputs.parent(row, node).filter(|_| !own.commits);
            let before = parent.map_or(&state, |parent| &paths[parent]);
            let token = row.start as usize + node;
            let (output, after, record) = token_of(before, token);
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

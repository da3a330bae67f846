//! A recurrent layer with random weights on a device.

use lockstep_backend::{
    Axis, Backend, Batch, DeltaOperands, DeltaShape, GatedDelta, Holds, InputLimits, Owners,
    PassRecords as _, Recurrence, Row, RowState, Span, StatesShape,
};

use super::script::{LIMITS, MOST_TOKENS, Part, Step, VOCAB};

/// Layer that is used, of two.
const LAYER: usize = 1;

/// Writes the current rows of a tensor.
type Write<B> = fn(&mut B, &mut <B as lockstep_backend::Memory>::Tensor, &[f32]);

/// Columns that each token brings: queries, keys, values and gates, then strengths and decays.
struct Columns {
    projected: Vec<Vec<f32>>,
    gates: Vec<Vec<f32>>,
}

pub struct World<B: Backend> {
    backend: B,
    write: Write<B>,
    shape: DeltaShape,
    columns: Columns,
    /// Taps, logarithms of decays, their biases, weights of the norm.
    weights: [B::Vector; 4],
    states: B::States,
    inputs: B::Inputs,
    passes: B::Passes,
    /// Projections, gates, space, output, and the output as the host reads it.
    tensors: [B::Tensor; 5],
}

/// Numbers in ±1 that look random.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let number = |at: u64| {
        let x = (seed << 32).wrapping_add(at + 1);
        let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 27)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len as u64).map(number).collect()
}

fn scaled(seed: u64, len: usize, scale: f32, shift: f32) -> Vec<f32> {
    let all = noise(seed, len).into_iter();
    all.map(|x| scale * x + shift).collect()
}

impl<B: Backend> World<B> {
    pub fn new(mut backend: B, shape: DeltaShape, write: Write<B>) -> Self {
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let (values, width) = (shape.value_width(), channels + shape.value_width());
        let weights = [
            scaled(1, shape.taps * channels, 0.8, 0.0),
            scaled(2, heads, 2.0, -1.0),
            scaled(3, heads, 2.0, -2.0),
            scaled(4, shape.value_dim, 0.3, 1.0),
        ];
        let states = StatesShape {
            layers: 2,
            recurrence: Recurrence::Delta(shape),
            limits: LIMITS,
        };
        let nodes = LIMITS.records * LIMITS.nodes;
        let limits = InputLimits {
            tokens: MOST_TOKENS,
            requests: LIMITS.records,
            groups: 1,
            pages: LIMITS.records,
            mask_words: nodes,
            replays: nodes,
            ..InputLimits::of(&Batch::default(), MOST_TOKENS)
        };
        let columns = |first: u64, width: usize| {
            let tokens = 0..VOCAB as u64;
            tokens
                .map(|token| scaled(first + token, width, 2.0, 0.0))
                .collect()
        };
        let mut tensor = |width, holds| backend.tensor(MOST_TOKENS, width, holds).unwrap();
        Self {
            tensors: [
                tensor(width, Holds::Sum),
                tensor(2 * heads, Holds::Sum),
                tensor(channels, Holds::Sum),
                tensor(values, Holds::Operand),
                tensor(values, Holds::Logits),
            ],
            weights: weights.map(|values| backend.load_vector(&values).unwrap()),
            states: backend.states(&states).unwrap(),
            inputs: backend.inputs(&limits).unwrap(),
            passes: B::Passes::planned(Vec::new()),
            columns: Columns {
                projected: columns(100, width),
                gates: columns(1000, 2 * heads),
            },
            backend,
            write,
            shape,
        }
    }

    /// Runs a pass, and returns the output of each token of its rows. A token that is in no row
    /// lies before each row.
    pub fn run(&mut self, step: &Step) -> Vec<Vec<f32>> {
        let copied = self.backend.copy_states(&mut self.states, &step.moves);
        copied.unwrap();
        let (mut tokens, mut own, mut laid_out) = (Vec::new(), Vec::new(), LaidOut::default());
        for part in &step.parts {
            tokens.push(0);
            own.extend(tokens.len()..tokens.len() + part.tokens.len());
            laid_out.push(part, tokens.len());
            tokens.extend(&part.tokens);
        }
        let numbers: Vec<u32> = (0..tokens.len() as u32).collect();
        self.pass(&laid_out.batch(&numbers), &tokens);
        let out = self.read(tokens.len());
        let rows: Vec<_> = out.chunks(self.shape.value_width()).collect();
        own.iter().map(|token| rows[*token].to_vec()).collect()
    }

    /// Runs the operation over a batch, padded to the recorded pass that holds it.
    fn pass(&mut self, batch: &Batch<'_>, tokens: &[usize]) {
        let Self {
            backend,
            states,
            inputs,
            ..
        } = self;
        let all = |rows: &[Vec<f32>]| -> Vec<f32> {
            let rows = tokens.iter().map(|token| &rows[*token]);
            rows.flatten().copied().collect()
        };
        for (tensor, values) in [
            (0, all(&self.columns.projected)),
            (1, all(&self.columns.gates)),
        ] {
            backend.set_rows(&mut self.tensors[tensor], tokens.len());
            (self.write)(backend, &mut self.tensors[tensor], &values);
        }
        backend.stage(batch, inputs).unwrap();
        let key = backend.pad(batch.key(), inputs);
        for tensor in &mut self.tensors[..4] {
            backend.set_rows(tensor, key.tokens);
        }
        let [projected, gates, space, out, _] = &mut self.tensors;
        let [convolution, a_log, dt_bias, norm] = &self.weights;
        let op = GatedDelta {
            shape: self.shape,
            convolution,
            a_log,
            dt_bias,
            norm,
            eps: 1e-6,
        };
        let mut work = |backend: &mut B| {
            let operands = DeltaOperands {
                projected: &*projected,
                gates: &mut *gates,
                space: &mut *space,
            };
            backend.gated_delta(states, LAYER, &op, operands, inputs, out)
        };
        let done = backend.pass(&mut self.passes, key, &mut work);
        done.unwrap();
    }

    fn read(&mut self, tokens: usize) -> Vec<f32> {
        let [.., out, logits] = &mut self.tensors;
        let width = self.shape.value_width();
        self.backend.set_rows(out, tokens);
        self.backend.set_rows(logits, tokens);
        self.backend.place_columns(out, logits, 0);
        let (mut space, rows) = (Vec::new(), [0..tokens; 1]);
        let owners = Owners {
            widths: &[width],
            rows: &rows,
        };
        let found = self
            .backend
            .gather_to_host(Axis::Alone, logits, owners, &mut space);
        found.unwrap().to_vec()
    }
}

/// Lists of a batch.
#[derive(Default)]
struct LaidOut {
    rows: Vec<Row>,
    states: Vec<RowState>,
    masks: Vec<u64>,
    replays: Vec<u32>,
    keeps: Vec<lockstep_backend::StateKeep>,
}

impl LaidOut {
    /// Adds a row whose tokens begin at `start`.
    fn push(&mut self, part: &Part, start: usize) {
        let span = |start: usize, len: usize| Span {
            start: start as u32,
            len: len as u32,
        };
        self.states.push(RowState {
            replays: span(self.replays.len(), part.replays.len()),
            keeps: span(self.keeps.len(), part.keeps.len()),
            ..part.state
        });
        self.rows.push(Row {
            start: start as u32,
            q_len: part.tokens.len() as u32,
            kv_len: 0,
            pages_start: 0,
            mask: part.parents.is_some().then_some(self.masks.len() as u32),
        });
        self.masks.extend(part.masks());
        self.replays.extend(&part.replays);
        self.keeps.extend(&part.keeps);
    }

    fn batch<'a>(&'a self, numbers: &'a [u32]) -> Batch<'a> {
        Batch {
            tokens: numbers,
            positions: numbers,
            cells: numbers,
            rows: &self.rows,
            pages: &[0],
            masks: &self.masks,
            states: &self.states,
            replays: &self.replays,
            keeps: &self.keeps,
            ..Batch::default()
        }
    }
}

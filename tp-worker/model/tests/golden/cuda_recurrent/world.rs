//! Passes of a script through a recurrent layer on a device.

use lockstep_backend::{
    Axis, Backend, Batch, Holds, InputLimits, Owners, PassRecords as _, Recurrence, Row, RowState,
    Span, StatesShape,
};

use super::layer::{Layer, Widths};
use super::script::{LIMITS, MOST_TOKENS, Part, Step, VOCAB};

/// Layer that is used, of two.
const LAYER: usize = 1;

/// Writes the current rows of a tensor.
type Write<B> = fn(&mut B, &mut <B as lockstep_backend::Memory>::Tensor, &[f32]);

/// Columns that each token brings: projections, then gates.
struct Columns {
    projected: Vec<Vec<f32>>,
    gates: Vec<Vec<f32>>,
}

pub struct World<B: Backend> {
    backend: B,
    write: Write<B>,
    widths: Widths,
    columns: Columns,
    layer: Layer<B>,
    /// The output as the host reads it.
    logits: B::Tensor,
    states: B::States,
    inputs: B::Inputs,
    passes: B::Passes,
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
    pub fn new(mut backend: B, rule: Recurrence, write: Write<B>) -> Self {
        let widths = Widths::of(&rule);
        let states = StatesShape {
            layers: 2,
            recurrence: rule,
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
        Self {
            layer: Layer::new(&mut backend, rule, MOST_TOKENS, scaled),
            logits: backend
                .tensor(MOST_TOKENS, widths.out, Holds::Logits)
                .unwrap(),
            states: backend.states(&states).unwrap(),
            inputs: backend.inputs(&limits).unwrap(),
            passes: B::Passes::planned(Vec::new()),
            columns: Columns {
                projected: columns(100, widths.projected),
                gates: columns(1000, widths.gates),
            },
            backend,
            write,
            widths,
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
        let rows: Vec<_> = out.chunks(self.widths.out).collect();
        own.iter().map(|token| rows[*token].to_vec()).collect()
    }

    /// Runs the operation over a batch, padded to the recorded pass that holds it.
    fn pass(&mut self, batch: &Batch<'_>, tokens: &[usize]) {
        let Self {
            backend,
            layer,
            states,
            inputs,
            ..
        } = self;
        let all = |rows: &[Vec<f32>]| -> Vec<f32> {
            let rows = tokens.iter().map(|token| &rows[*token]);
            rows.flatten().copied().collect()
        };
        layer.set_rows(backend, tokens.len());
        let Columns { projected, gates } = &self.columns;
        (self.write)(backend, &mut layer.tensors.projected, &all(projected));
        (self.write)(backend, &mut layer.tensors.gates, &all(gates));
        backend.stage(batch, inputs).unwrap();
        let key = backend.pad(batch.key(), inputs);
        layer.set_rows(backend, key.tokens);
        let mut work = |backend: &mut B| layer.run(backend, (&mut *states, LAYER), inputs);
        let done = backend.pass(&mut self.passes, key, &mut work);
        done.unwrap();
    }

    fn read(&mut self, tokens: usize) -> Vec<f32> {
        let (out, logits) = (&mut self.layer.tensors.out, &mut self.logits);
        let width = self.widths.out;
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

//! A recurrent layer with random weights, and rows that are made by hand.

use lockstep_backend::{
    Batch, DeltaOperands, GatedDelta, Holds, Mamba2, Mamba2Operands, Memory as _, Ops as _,
    Recurrence, Row, RowState, ShortConvolution, Span, StateKeep, StatesShape,
};
use lockstep_backend_cpu::{CpuBackend, CpuStates, CpuTensor, CpuVector, Isa};
use lockstep_types::{Dtype, StateLimits};

use crate::machine::{Values, backend, staged, tensor};

/// Layer that the tests use, of two.
const LAYER: usize = 1;

/// Weights, and what each token of a vocabulary brings.
pub struct Data {
    pub rule: Recurrence,
    /// `[taps·channels]`
    pub convolution: Vec<f32>,
    /// Biases of the convolution, which the delta rule has none of.
    pub bias: Vec<f32>,
    pub a_log: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub norm: Vec<f32>,
    pub eps: f32,
    /// Factors of values in outputs, which Mamba-2 alone has.
    pub skip: Vec<f32>,
    /// Columns of each token: queries, keys, values, gates; or the three parts of a convolution.
    pub projected: Vec<Vec<f32>>,
    /// Strengths and decays of each token, or its steps.
    pub gates: Vec<Vec<f32>>,
}

/// A layer on a backend.
pub struct World {
    pub data: Data,
    backend: CpuBackend,
    states: CpuStates,
}

/// A row of a batch.
#[derive(Clone, Default)]
pub struct Part {
    tokens: Vec<usize>,
    state: RowState,
    parents: Option<Vec<Option<usize>>>,
    replays: Vec<u32>,
    keeps: Vec<StateKeep>,
}

impl Part {
    /// Tokens that are committed to state 0.
    pub fn of(tokens: &[usize]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            state: RowState {
                commits: true,
                ..RowState::default()
            },
            ..Self::default()
        }
    }

    pub fn fresh(mut self) -> Self {
        self.state.fresh = true;
        self
    }

    pub fn in_state(mut self, state: u32) -> Self {
        self.state.state = state;
        self.state.records = u32::from(state > 0);
        self
    }

    pub fn verify(mut self) -> Self {
        self.state.commits = false;
        self
    }

    pub fn replaying(mut self, nodes: &[u32], side: u32) -> Self {
        self.replays = nodes.to_vec();
        self.state.side = side;
        self
    }

    pub fn tree(mut self, parents: &[Option<usize>]) -> Self {
        self.parents = Some(parents.to_vec());
        self
    }

    pub fn keeping(mut self, keeps: &[(usize, u32)]) -> Self {
        let keep = |(after, state): &(usize, u32)| StateKeep {
            after: *after as u32,
            state: *state,
        };
        self.keeps = keeps.iter().map(keep).collect();
        self
    }

    /// Words of the mask of all nodes.
    fn masks(&self) -> Vec<u64> {
        let Some(parents) = &self.parents else {
            return Vec::new();
        };
        let word = |node: usize| {
            let path = std::iter::successors(Some(node), |node| parents[*node]);
            path.fold(0, |word, node| word | 1 << node)
        };
        (0..parents.len()).map(word).collect()
    }
}

impl World {
    pub fn new(
        isa: Isa,
        threads: usize,
        rule: Recurrence,
        limits: StateLimits,
        vocab: usize,
    ) -> Self {
        Self::on(backend(isa, Dtype::Float32, threads), rule, limits, vocab)
    }

    /// A layer on a backend that another layer may have used.
    pub fn on(
        mut backend: CpuBackend,
        rule: Recurrence,
        limits: StateLimits,
        vocab: usize,
    ) -> Self {
        let channels = rule.convolution().channels;
        let taps = rule.convolution().taps;
        let mut values = Values::new(7 + channels as u64);
        let mut floats = |len: usize, scale: f32, shift: f32| -> Vec<f32> {
            let all = values.floats(len).into_iter();
            all.map(|x| scale * x + shift).collect()
        };
        let heads = rule.heads().map_or(0, |heads| heads.value_heads);
        let norms = rule.heads().map_or(0, |heads| heads.value_dim);
        let (width, gates) = match rule {
            Recurrence::Delta(heads) => (channels + heads.value_width(), 2 * heads.value_heads),
            Recurrence::Mamba2(heads) => (channels + heads.value_width(), heads.value_heads),
            Recurrence::Convolution(_) => (3 * channels, 1),
        };
        let data = Data {
            rule,
            convolution: floats(taps * channels, 0.8, 0.0),
            bias: floats(channels, 0.5, 0.0),
            a_log: floats(heads, 2.0, -1.0),
            dt_bias: floats(heads, 2.0, -2.0),
            norm: floats(norms, 0.3, 1.0),
            eps: 1e-6,
            skip: floats(heads, 1.0, 0.0),
            projected: (0..vocab).map(|_| floats(width, 2.0, 0.0)).collect(),
            gates: (0..vocab).map(|_| floats(gates, 2.0, 0.0)).collect(),
        };
        let states = StatesShape {
            layers: 2,
            recurrence: rule,
            limits,
        };
        Self {
            states: backend.states(&states).unwrap(),
            data,
            backend,
        }
    }

    pub fn into_backend(self) -> CpuBackend {
        self.backend
    }

    pub fn copy(&mut self, moves: &[(u32, u32)]) {
        self.backend.copy_states(&mut self.states, moves).unwrap();
    }

    /// Runs rows, and returns the output of each token. A token that is in no row lies before the
    /// first row, and between each two.
    pub fn run(&mut self, parts: &[Part]) -> Vec<Vec<f32>> {
        let (mut rows, mut states) = (Vec::new(), Vec::new());
        let (mut tokens, mut masks, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let (mut replays, mut keeps) = (Vec::new(), Vec::new());
        for part in parts {
            tokens.push(0);
            let span = |start: usize, len: usize| Span {
                start: start as u32,
                len: len as u32,
            };
            states.push(RowState {
                replays: span(replays.len(), part.replays.len()),
                keeps: span(keeps.len(), part.keeps.len()),
                ..part.state
            });
            rows.push(Row {
                start: tokens.len() as u32,
                q_len: part.tokens.len() as u32,
                kv_len: 0,
                pages_start: 0,
                mask: part.parents.is_some().then_some(masks.len() as u32),
            });
            own.extend(tokens.len()..tokens.len() + part.tokens.len());
            tokens.extend(&part.tokens);
            masks.extend(part.masks());
            replays.extend(&part.replays);
            keeps.extend(&part.keeps);
        }
        let numbers: Vec<u32> = (0..tokens.len() as u32).collect();
        let batch = Batch {
            tokens: &numbers,
            positions: &numbers,
            cells: &numbers,
            rows: &rows,
            pages: &vec![0; tokens.len()],
            masks: &masks,
            states: &states,
            replays: &replays,
            keeps: &keeps,
            ..Batch::default()
        };
        let out = self.op(&batch, &tokens);
        own.iter().map(|token| out[*token].clone()).collect()
    }

    fn op(&mut self, batch: &Batch<'_>, tokens: &[usize]) -> Vec<Vec<f32>> {
        let (data, backend) = (&self.data, &mut self.backend);
        let inputs = staged(backend, batch, tokens.len());
        let mut rows = |rows: &[Vec<f32>]| {
            let all = tokens.iter().flat_map(|token| rows[*token].clone());
            tensor(backend, &all.collect::<Vec<_>>(), rows[0].len())
        };
        let (projected, mut gates) = (rows(&data.projected), rows(&data.gates));
        let channels = data.rule.convolution().channels;
        let garbage = vec![f32::NAN; tokens.len() * channels];
        let mut space = tensor(backend, &garbage, channels);
        let width = data
            .rule
            .heads()
            .map_or(channels, |heads| heads.value_width());
        let mut out = backend.tensor(tokens.len(), width, Holds::Sum).unwrap();
        let states = &mut self.states;
        run(
            data, backend, states, &projected, &mut gates, &mut space, &inputs, &mut out,
        );
        let rows = out.values().chunks(width);
        rows.map(<[f32]>::to_vec).collect()
    }
}

/// Runs the operation of the layer's rule.
#[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
fn run(
    data: &Data,
    backend: &mut CpuBackend,
    states: &mut CpuStates,
    projected: &CpuTensor,
    gates: &mut CpuTensor,
    space: &mut CpuTensor,
    inputs: &<CpuBackend as lockstep_backend::Memory>::Inputs,
    out: &mut CpuTensor,
) {
    let mut vector = |values: &[f32]| -> CpuVector { backend.load_vector(values).unwrap() };
    let (convolution, bias) = (vector(&data.convolution), vector(&data.bias));
    let [a_log, dt_bias, norm, skip] =
        [&data.a_log, &data.dt_bias, &data.norm, &data.skip].map(|values| vector(values));
    let ran = match data.rule {
        Recurrence::Delta(shape) => {
            let op = GatedDelta {
                shape,
                convolution: &convolution,
                a_log: &a_log,
                dt_bias: &dt_bias,
                norm: &norm,
                eps: data.eps,
            };
            let operands = DeltaOperands {
                projected,
                gates,
                space,
            };
            backend.gated_delta(states, LAYER, &op, operands, inputs, out)
        }
        Recurrence::Mamba2(shape) => {
            let op = Mamba2 {
                shape,
                convolution: &convolution,
                convolution_bias: Some(&bias),
                a_log: &a_log,
                dt_bias: &dt_bias,
                skip: &skip,
            };
            let operands = Mamba2Operands {
                projected,
                steps: gates,
                space,
            };
            backend.mamba2(states, LAYER, &op, operands, inputs, out)
        }
        Recurrence::Convolution(shape) => {
            let op = ShortConvolution {
                shape,
                convolution: &convolution,
                bias: Some(&bias),
            };
            backend.short_convolution(states, LAYER, &op, projected, space, inputs, out)
        }
    };
    ran.unwrap();
}

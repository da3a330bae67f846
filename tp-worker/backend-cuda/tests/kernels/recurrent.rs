//! Recurrent layers and output gates against plain loops in f64. `tp-worker/model/tests/golden`
//! compares their bits with those of processors.

use lockstep_backend::{
    Axis, Batch, DeltaOperands, DeltaShape, Exchange as _, GatedDelta, Holds, InputLimits,
    Memory as _, Ops as _, Owners, Passes as _, Recurrence, Row, RowState, Span, StateKeep,
    StatesShape,
};
use lockstep_backend_cuda::{
    BlockOps, CollectiveOptions, CudaBackend, CudaOptions, CudaTensor, Element, Inputs, Rows,
};
use lockstep_collective::Single;
use lockstep_types::{Dtype, StateLimits};

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, rounded, tolerance};

const SHAPE: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 32,
    value_dim: 48,
    taps: 3,
};
const EPS: f32 = 1e-5;
/// Tokens of the prompt, and the parents of the nodes behind it.
const PROMPT: usize = 11;
const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(2)];
const TOKENS: usize = PROMPT + PARENTS.len();
const STATES: StatesShape = StatesShape {
    layers: 1,
    recurrence: Recurrence::Delta(SHAPE),
    limits: StateLimits {
        states: 3,
        records: 1,
        nodes: PARENTS.len(),
    },
};

/// Weights, and what each token brings.
struct Data {
    convolution: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    /// `[TOKENS, channels + value_width]`
    projected: Vec<f32>,
    /// `[TOKENS, 2 · value_heads]`
    gates: Vec<f32>,
}

impl Data {
    fn new(seed: u64) -> Self {
        let noise = &mut Noise(seed);
        let width = SHAPE.channels() + SHAPE.value_width();
        Self {
            convolution: noise.floats(SHAPE.taps * SHAPE.channels()),
            a_log: noise.floats(SHAPE.value_heads),
            dt_bias: noise.floats(SHAPE.value_heads),
            norm: noise.floats(SHAPE.value_dim),
            projected: noise.floats(TOKENS * width),
            gates: noise.floats(TOKENS * 2 * SHAPE.value_heads),
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

/// Output of the last of `tokens`.
fn oracle(data: &Data, tokens: &[usize]) -> Vec<f64> {
    let (channels, keys, dim) = (SHAPE.channels(), SHAPE.key_width(), SHAPE.key_dim);
    let width = channels + SHAPE.value_width();
    let wide = |x: f32| f64::from(x);
    let brought = |token: usize, column: usize| wide(data.projected[token * width + column]);
    let mut states = vec![vec![0.0; dim * SHAPE.value_dim]; SHAPE.value_heads];
    let mut out = Vec::new();
    for at in 0..tokens.len() {
        let convolved = |channel: usize| {
            let taps = (0..SHAPE.taps).filter(|tap| at + tap + 1 >= SHAPE.taps);
            let products = taps.map(|tap| {
                let weight = wide(data.convolution[tap * channels + channel]);
                weight * brought(tokens[at + tap + 1 - SHAPE.taps], channel)
            });
            silu(products.sum())
        };
        let x: Vec<f64> = (0..channels).map(convolved).collect();
        let gate = |at_gate: usize| wide(data.gates[tokens[at] * 2 * SHAPE.value_heads + at_gate]);
        out.clear();
        for (head, state) in states.iter_mut().enumerate() {
            let first = head / (SHAPE.value_heads / SHAPE.key_heads) * dim;
            let query = unit(&x[first..first + dim]);
            let key = unit(&x[keys + first..keys + first + dim]);
            let strength = 1.0 / (1.0 + (-gate(head)).exp());
            let step = gate(SHAPE.value_heads + head) + wide(data.dt_bias[head]);
            let decay = (-wide(data.a_log[head]).exp() * step.exp().ln_1p()).exp();
            state.iter_mut().for_each(|value| *value *= decay);
            let mut output = vec![0.0; SHAPE.value_dim];
            for (column, output) in output.iter_mut().enumerate() {
                let place = |row: usize| row * SHAPE.value_dim + column;
                let found: f64 = (0..dim).map(|row| state[place(row)] * key[row]).sum();
                let value = x[2 * keys + head * SHAPE.value_dim + column];
                let update = strength * (value - found);
                (0..dim).for_each(|row| state[place(row)] += key[row] * update);
                let sum: f64 = (0..dim).map(|row| state[place(row)] * query[row]).sum();
                *output = sum / (dim as f64).sqrt();
            }
            let squares: f64 = output.iter().map(|x| x * x).sum();
            let rms = (squares / SHAPE.value_dim as f64 + wide(EPS)).sqrt();
            for (column, output) in output.iter().enumerate() {
                let z = brought(tokens[at], channels + head * SHAPE.value_dim + column);
                out.push(wide(data.norm[column]) * output / rms * silu(z));
            }
        }
    }
    out
}

fn backend(element: Element) -> CudaBackend {
    let options = CudaOptions {
        ordinal: 0,
        dtype: match element {
            Element::F32 => Dtype::Float32,
            Element::Bf16 => Dtype::Bfloat16,
        },
        kernels: None,
        graphs: Vec::new(),
        collectives: CollectiveOptions::default(),
    };
    CudaBackend::new(&options, Box::new(Single::new())).expect("a device")
}

/// Nodes from the root to `node`.
fn path(node: usize) -> Vec<usize> {
    let path = std::iter::successors(Some(node), |node| PARENTS[*node]);
    let mut path: Vec<usize> = path.collect();
    path.reverse();
    path
}

/// Runs `tokens` as one row, and returns their output, and where they were staged.
fn pass(
    gpu: &mut CudaBackend,
    states: &mut lockstep_backend_cuda::CudaStates,
    data: &Data,
    (tokens, state): (std::ops::Range<usize>, RowState),
    keeps: &[StateKeep],
) -> (Vec<f32>, Inputs) {
    let count = tokens.len();
    let numbers: Vec<u32> = (0..count as u32).collect();
    let masks: Vec<u64> = (0..PARENTS.len())
        .map(|node| path(node).iter().fold(0, |word, at| word | 1 << at))
        .collect();
    let row = Row {
        start: 0,
        q_len: count as u32,
        kv_len: 0,
        pages_start: 0,
        mask: (!state.commits).then_some(0),
    };
    let batch = Batch {
        tokens: &numbers,
        positions: &numbers,
        cells: &numbers,
        rows: &[row],
        pages: &[0],
        masks: &masks,
        states: &[state],
        keeps,
        ..Batch::default()
    };
    let mut inputs = gpu.inputs(&InputLimits::of(&batch, TOKENS)).expect("room");
    gpu.stage(&batch, &mut inputs).expect("a copy");
    let mut rows = |values: &[f32], width: usize| -> CudaTensor {
        let mut tensor = gpu.tensor(count, width, Holds::Sum).expect("room");
        gpu.upload(
            &mut tensor,
            &values[tokens.start * width..tokens.end * width],
        );
        tensor
    };
    let projected = rows(&data.projected, SHAPE.channels() + SHAPE.value_width());
    let mut gates = rows(&data.gates, 2 * SHAPE.value_heads);
    let mut tensor = |width, holds| gpu.tensor(count, width, holds).expect("room");
    let mut space = tensor(SHAPE.channels(), Holds::Sum);
    let mut out = tensor(SHAPE.value_width(), Holds::Operand);
    let mut logits = tensor(SHAPE.value_width(), Holds::Logits);
    let vectors = [&data.convolution, &data.a_log, &data.dt_bias, &data.norm];
    let [convolution, a_log, dt_bias, norm] =
        vectors.map(|values| gpu.load_vector(values).expect("room"));
    let op = GatedDelta {
        shape: SHAPE,
        convolution: &convolution,
        a_log: &a_log,
        dt_bias: &dt_bias,
        norm: &norm,
        eps: EPS,
    };
    let operands = DeltaOperands {
        projected: &projected,
        gates: &mut gates,
        space: &mut space,
    };
    gpu.gated_delta(states, 0, &op, operands, &inputs, &mut out)
        .expect("launches");
    gpu.place_columns(&out, &mut logits, 0);
    let owners = Owners {
        widths: &[SHAPE.value_width()],
        rows: &[0..count; 1],
    };
    let mut space = Vec::new();
    let found = gpu.gather_to_host(Axis::Alone, &logits, owners, &mut space);
    (found.expect("values").to_vec(), inputs)
}

/// A prompt, and a tree behind the copy that it has kept of its state.
fn texts(element: Element, seed: u64) -> (Data, Vec<f32>) {
    let (data, mut gpu) = (Data::new(seed), backend(element));
    let mut states = gpu.states(&STATES).expect("room");
    let prompt = RowState {
        fresh: true,
        commits: true,
        keeps: Span { start: 0, len: 1 },
        ..RowState::default()
    };
    let keep = StateKeep {
        after: PROMPT as u32,
        state: 1,
    };
    let row = (0..PROMPT, prompt);
    let (mut found, _) = pass(&mut gpu, &mut states, &data, row, &[keep]);
    gpu.copy_states(&mut states, &[(1, 2)]).expect("launches");
    let tree = RowState {
        state: 2,
        ..RowState::default()
    };
    let row = (PROMPT..TOKENS, tree);
    found.extend(pass(&mut gpu, &mut states, &data, row, &[]).0);
    (data, found)
}

/// Prompts and trees have the outputs of plain arithmetic.
#[test]
fn the_gated_delta_rule_is_that_of_plain_arithmetic() {
    for (element, seed) in [(ELEMENTS[0], SEEDS[0]), (ELEMENTS[1], SEEDS[1])] {
        let _order = lockstep_fake_cuda::order(seed);
        let (data, found) = texts(element, seed);
        for (token, found) in found.chunks_exact(SHAPE.value_width()).enumerate() {
            let mut text: Vec<usize> = (0..=token.min(PROMPT - 1)).collect();
            if let Some(node) = token.checked_sub(PROMPT) {
                text.extend(path(node).iter().map(|node| PROMPT + node));
            }
            assert_close(found, &oracle(&data, &text), 4.0 * tolerance(element));
        }
    }
}

/// States that a later batch names are held against the states when it is staged: a repeated pass does
/// not ask.
#[test]
#[should_panic(expected = "a batch names a state that does not exist")]
fn later_batches_name_states_that_exist() {
    let (data, mut gpu) = (Data::new(1), backend(Element::F32));
    let mut states = gpu.states(&STATES).expect("room");
    let state = RowState {
        fresh: true,
        commits: true,
        ..RowState::default()
    };
    let (_, mut inputs) = pass(&mut gpu, &mut states, &data, (0..PROMPT, state), &[]);
    let row = Row {
        start: 0,
        q_len: 1,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let beyond = RowState {
        state: STATES.limits.states as u32,
        ..state
    };
    let batch = Batch {
        tokens: &[0],
        positions: &[0],
        cells: &[0],
        rows: &[row],
        pages: &[0],
        states: &[beyond],
        ..Batch::default()
    };
    gpu.stage(&batch, &mut inputs).expect("a copy");
}

/// An output gate for each column, and one for all of a row. Rows that are not there stay.
#[test]
fn output_gates_are_sigmoids() {
    let (gpu, width, there) = (Gpu::new(), 300, 3);
    for element in ELEMENTS {
        let made = BlockOps::new(&gpu.context, &gpu.compiler, element);
        let blocks = made.expect("kernels");
        for gates in [1, width] {
            let x = rounded(element, &Noise(1).floats(4 * width));
            let gate = Noise(2).floats(4 * gates);
            let mut out = gpu.floats(element, &x);
            let counts = gpu.buffer(&[there as u32]);
            let rows = Rows::counted(4, &counts, 0);
            let of = gpu.floats(Element::F32, &gate);
            let done = blocks.sigmoid_gate(&gpu.stream, (&of, gates), width, rows, &mut out);
            done.expect("a launch");
            let found = gpu.read(&out);
            let gated = |at: usize| {
                let gate = f64::from(gate[at / width * gates + at % width % gates]);
                f64::from(x[at]) / (1.0 + (-gate).exp())
            };
            let wanted: Vec<f64> = (0..there * width).map(gated).collect();
            assert_close(&found[..there * width], &wanted, tolerance(element));
            assert_eq!(found[there * width..], x[there * width..]);
        }
    }
}

/// A little of every kernel, for the sanitizers.
pub fn every_kernel() {
    let (_, found) = texts(Element::Bf16, 1);
    assert!(found.iter().all(|value| value.is_finite()));
    output_gates_are_sigmoids();
}

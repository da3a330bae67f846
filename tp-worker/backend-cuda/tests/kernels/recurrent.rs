//! Recurrent layers of every rule, and output gates, against plain loops in f64. `tp-worker/model/tests/golden`
//! compares their bits with those of processors.

mod mamba;
mod rows;
mod short;

use std::ops::Range;

use lockstep_backend::{
    Batch, DeltaOperands, DeltaShape, GatedDelta, Holds, Memory as _, Ops as _, Passes as _,
    Recurrence, Row, RowState,
};
use lockstep_backend_cuda::{BlockOps, CudaBackend, CudaStates, CudaTensor, Element, Inputs, Rows};

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, rounded, tolerance};
use rows::{LIMITS, PROMPT, TOKENS, backend, brought, stage, states, text_of, texts};

const SHAPE: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 32,
    value_dim: 48,
    taps: 3,
};
const EPS: f32 = 1e-5;

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

fn layer(
    data: &Data,
    gpu: &mut CudaBackend,
    states: &mut CudaStates,
    tokens: Range<usize>,
    inputs: &Inputs,
) -> CudaTensor {
    let width = SHAPE.channels() + SHAPE.value_width();
    let projected = brought(gpu, &data.projected, width, &tokens);
    let mut gates = brought(gpu, &data.gates, 2 * SHAPE.value_heads, &tokens);
    let mut tensor = |width, holds| gpu.tensor(tokens.len(), width, holds).expect("room");
    let mut space = tensor(SHAPE.channels(), Holds::Sum);
    let mut out = tensor(SHAPE.value_width(), Holds::Operand);
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
    gpu.gated_delta(states, 0, &op, operands, inputs, &mut out)
        .expect("launches");
    out
}

/// Prompts and trees have the outputs of plain arithmetic.
fn check(element: Element, seed: u64) {
    let data = Data::new(seed);
    let found = texts(
        element,
        Recurrence::Delta(SHAPE),
        |gpu, states, tokens, inputs| layer(&data, gpu, states, tokens, inputs),
    );
    for (token, found) in found.chunks_exact(SHAPE.value_width()).enumerate() {
        let wanted = oracle(&data, &text_of(token));
        assert_close(found, &wanted, 4.0 * tolerance(element));
    }
}

#[test]
fn every_rule_is_that_of_plain_arithmetic() {
    for (element, seed) in [(ELEMENTS[0], SEEDS[0]), (ELEMENTS[1], SEEDS[1])] {
        let _order = lockstep_fake_cuda::order(seed);
        check(element, seed);
        mamba::check(element, seed);
        short::check(element, seed);
        mamba::check_groups(element);
    }
}

/// States that a later batch names are held against the states when it is staged: a repeated pass does
/// not ask.
#[test]
#[should_panic(expected = "a batch names a state that does not exist")]
fn later_batches_name_states_that_exist() {
    let (data, gpu) = (Data::new(1), &mut backend(Element::F32));
    let mut states = states(gpu, Recurrence::Delta(SHAPE));
    let state = RowState {
        fresh: true,
        commits: true,
        ..RowState::default()
    };
    let mut inputs = stage(gpu, PROMPT, state, &[]);
    layer(&data, gpu, &mut states, 0..PROMPT, &inputs);
    let row = Row {
        start: 0,
        q_len: 1,
        kv_len: 0,
        pages_start: 0,
        mask: None,
    };
    let beyond = RowState {
        state: LIMITS.states as u32,
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
    check(Element::Bf16, 1);
    mamba::check(Element::Bf16, 1);
    short::check(Element::Bf16, 2);
    mamba::check_groups(Element::Bf16);
    output_gates_are_sigmoids();
}

/// Small enough to run for every fault.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn matrices_are_watched() {
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        check(Element::F32, seed);
        mamba::check(Element::F32, seed);
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn convolutions_are_watched() {
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        short::check(Element::F32, seed);
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn groups_are_watched() {
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        mamba::check_groups(Element::F32);
    }
}

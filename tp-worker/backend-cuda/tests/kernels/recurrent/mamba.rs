//! Mamba-2 and the norm of groups behind it.

use lockstep_backend::{
    ColumnGroups, DeltaShape, Holds, Mamba2, Mamba2Operands, Memory as _, Ops as _, Recurrence,
    RmsNorm,
};
use lockstep_backend_cuda::Element;

use super::rows::{TOKENS, backend, brought, read, text_of, texts};
use crate::support::{Noise, assert_close, tolerance};

const SHAPE: DeltaShape = DeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 32,
    value_dim: 48,
    taps: 3,
};
const EPS: f32 = 1e-5;
/// Parts of three groups.
const GROUPS: ColumnGroups = ColumnGroups {
    count: 3,
    width: 80,
    first: 40,
};

/// Weights, and what each token brings.
struct Data {
    convolution: Vec<f32>,
    bias: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    skip: Vec<f32>,
    norm: Vec<f32>,
    /// `[TOKENS, channels + value_width]`
    projected: Vec<f32>,
    /// `[TOKENS, value_heads]`
    steps: Vec<f32>,
}

impl Data {
    fn new(seed: u64) -> Self {
        let noise = &mut Noise(seed);
        let width = SHAPE.channels() + SHAPE.value_width();
        Self {
            convolution: noise.floats(SHAPE.taps * SHAPE.channels()),
            bias: noise.floats(SHAPE.channels()),
            a_log: noise.floats(SHAPE.value_heads),
            dt_bias: noise.floats(SHAPE.value_heads),
            skip: noise.floats(SHAPE.value_heads),
            norm: noise.floats(SHAPE.value_width()),
            projected: noise.floats(TOKENS * width),
            steps: noise.floats(TOKENS * SHAPE.value_heads),
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn wide(x: f32) -> f64 {
    f64::from(x)
}

/// Gated output of the last of `tokens`, before the norm.
fn gated(data: &Data, tokens: &[usize]) -> Vec<f64> {
    let (channels, keys, dim) = (SHAPE.channels(), SHAPE.key_width(), SHAPE.key_dim);
    let width = channels + SHAPE.value_width();
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
            silu(products.sum::<f64>() + wide(data.bias[channel]))
        };
        let x: Vec<f64> = (0..channels).map(convolved).collect();
        out.clear();
        for (head, state) in states.iter_mut().enumerate() {
            let first = head / (SHAPE.value_heads / SHAPE.key_heads) * dim;
            let (query, key) = (&x[first..first + dim], &x[keys + first..keys + first + dim]);
            let dt = wide(data.steps[tokens[at] * SHAPE.value_heads + head]);
            let step = (dt + wide(data.dt_bias[head])).exp().ln_1p();
            let decay = (-wide(data.a_log[head]).exp() * step).exp();
            for column in 0..SHAPE.value_dim {
                let own = head * SHAPE.value_dim + column;
                let value = x[2 * keys + own];
                let mut sum = wide(data.skip[head]) * value;
                for row in 0..dim {
                    let place = &mut state[row * SHAPE.value_dim + column];
                    *place = *place * decay + step * value * key[row];
                    sum += *place * query[row];
                }
                out.push(sum * silu(brought(tokens[at], channels + own)));
            }
        }
    }
    out
}

/// Norms the columns of each group by the mean square of those that are here.
fn normed(x: &[f64], groups: &ColumnGroups, weight: &[f32]) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for (_, columns) in groups.parts(x.len()) {
        let squares: f64 = x[columns.clone()].iter().map(|x| x * x).sum();
        let rms = (squares / groups.width as f64 + wide(EPS)).sqrt();
        for column in columns {
            out[column] = x[column] / rms * wide(weight[column]);
        }
    }
    out
}

fn found(element: Element, data: &Data) -> Vec<f32> {
    let (values, heads) = (SHAPE.value_width(), SHAPE.value_heads);
    let width = SHAPE.channels() + values;
    texts(
        element,
        Recurrence::Mamba2(SHAPE),
        |gpu, states, tokens, inputs| {
            let projected = brought(gpu, &data.projected, width, &tokens);
            let mut steps = brought(gpu, &data.steps, heads, &tokens);
            let mut tensor = |width, holds| gpu.tensor(tokens.len(), width, holds).expect("room");
            let mut space = tensor(SHAPE.channels(), Holds::Sum);
            let mut gated = tensor(values, Holds::Sum);
            let mut squares = tensor(GROUPS.count, Holds::Sum);
            let mut out = tensor(values, Holds::Operand);
            let vectors = [
                &data.convolution,
                &data.bias,
                &data.a_log,
                &data.dt_bias,
                &data.skip,
                &data.norm,
            ];
            let [convolution, bias, a_log, dt_bias, skip, norm] =
                vectors.map(|values| gpu.load_vector(values).expect("room"));
            let op = Mamba2 {
                shape: SHAPE,
                convolution: &convolution,
                convolution_bias: Some(&bias),
                a_log: &a_log,
                dt_bias: &dt_bias,
                skip: &skip,
            };
            let operands = Mamba2Operands {
                projected: &projected,
                steps: &mut steps,
                space: &mut space,
            };
            let done = gpu.mamba2(states, 0, &op, operands, inputs, &mut gated);
            done.expect("launches");
            let norm = RmsNorm {
                weight: &norm,
                eps: EPS,
            };
            let done = gpu.group_square_sums(&gated, &GROUPS, &mut squares);
            done.expect("a launch");
            let done = gpu.group_norm(&gated, &GROUPS, &squares, norm, &mut out);
            done.expect("a launch");
            out
        },
    )
}

/// Prompts and trees have the outputs of plain arithmetic.
pub fn check(element: Element, seed: u64) {
    let data = Data::new(seed);
    let found = found(element, &data);
    for (token, found) in found.chunks_exact(SHAPE.value_width()).enumerate() {
        let wanted = normed(&gated(&data, &text_of(token)), &GROUPS, &data.norm);
        assert_close(found, &wanted, 8.0 * tolerance(element));
    }
}

/// Groups of more columns than a block stages at once, of which the rank has a part of the first
/// and none of the last.
pub fn check_groups(element: Element) {
    let (rows, columns) = (2, 5000);
    let groups = ColumnGroups {
        count: 3,
        width: 3100,
        first: 700,
    };
    let noise = &mut Noise(5);
    let x = noise.floats(rows * columns);
    let weight = noise.floats(columns);
    let gpu = &mut backend(element);
    let on_device = brought(gpu, &x, columns, &(0..rows));
    let mut sums = gpu.tensor(rows, groups.count, Holds::Sum).expect("room");
    let mut out = gpu.tensor(rows, columns, Holds::Operand).expect("room");
    let weights = gpu.load_vector(&weight).expect("room");
    let norm = RmsNorm {
        weight: &weights,
        eps: EPS,
    };
    let done = gpu.group_square_sums(&on_device, &groups, &mut sums);
    done.expect("a launch");
    let done = gpu.group_norm(&on_device, &groups, &sums, norm, &mut out);
    done.expect("a launch");
    let [squares, found] = [&sums, &out].map(|of| read(gpu, of));
    for row in 0..rows {
        let x: Vec<f64> = x[row * columns..(row + 1) * columns]
            .iter()
            .map(|x| wide(*x))
            .collect();
        let mut wanted = vec![0.0; groups.count];
        for (group, own) in groups.parts(columns) {
            wanted[group] = x[own].iter().map(|x| x * x).sum();
        }
        assert_close(
            &squares[row * groups.count..][..groups.count],
            &wanted,
            1e-5,
        );
        let own = &found[row * columns..(row + 1) * columns];
        assert_close(own, &normed(&x, &groups, &weight), tolerance(element));
    }
}

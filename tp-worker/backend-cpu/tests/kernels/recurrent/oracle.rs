//! The rules of recurrent layers in plain f64 arithmetic.

use lockstep_backend::{DeltaShape, Recurrence};

use super::world::Data;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

fn wide(x: f32) -> f64 {
    f64::from(x)
}

/// Outputs of the tokens of a text.
pub fn outputs(data: &Data, tokens: &[usize]) -> Vec<Vec<f64>> {
    match data.rule {
        Recurrence::Delta(shape) => with_matrices(data, tokens, &shape, delta),
        Recurrence::Mamba2(shape) => with_matrices(data, tokens, &shape, mamba2),
        Recurrence::Convolution(shape) => {
            let channels = shape.channels;
            let part = |token: usize, number: usize, channel: usize| {
                wide(data.projected[token][number * channels + channel])
            };
            let product = |token, channel| part(token, 0, channel) * part(token, 2, channel);
            let output = |at: usize, channel: usize| {
                let convolved = convolved(data, tokens, at, channel, product);
                part(tokens[at], 1, channel) * (convolved + wide(data.bias[channel]))
            };
            let of_token = |at| (0..channels).map(|channel| output(at, channel)).collect();
            (0..tokens.len()).map(of_token).collect()
        }
    }
}

/// Sum of a channel over the taps at token `at`, where `column` has the values of tokens.
fn convolved(
    data: &Data,
    tokens: &[usize],
    at: usize,
    channel: usize,
    column: impl Fn(usize, usize) -> f64,
) -> f64 {
    let shape = data.rule.convolution();
    let taps = (0..shape.taps).filter(|tap| at + tap + 1 >= shape.taps);
    let products = taps.map(|tap| {
        let weight = data.convolution[tap * shape.channels + channel];
        wide(weight) * column(tokens[at + tap + 1 - shape.taps], channel)
    });
    products.sum()
}

/// A head's columns behind a token: `(data, shape, head, convolved columns, token, matrix)`.
type Step = fn(&Data, &DeltaShape, usize, &[f64], usize, &mut [f64]) -> Vec<f64>;

fn with_matrices(data: &Data, tokens: &[usize], shape: &DeltaShape, step: Step) -> Vec<Vec<f64>> {
    let biased = matches!(data.rule, Recurrence::Mamba2(_));
    let mut states = vec![vec![0.0; shape.key_dim * shape.value_dim]; shape.value_heads];
    let mut all = Vec::new();
    for at in 0..tokens.len() {
        let raw = |token: usize, channel: usize| wide(data.projected[token][channel]);
        let column = |channel: usize| {
            let bias = if biased {
                wide(data.bias[channel])
            } else {
                0.0
            };
            silu(convolved(data, tokens, at, channel, raw) + bias)
        };
        let x: Vec<f64> = (0..shape.channels()).map(column).collect();
        let heads = states.iter_mut().enumerate();
        let out = heads.flat_map(|(head, state)| step(data, shape, head, &x, tokens[at], state));
        all.push(out.collect());
    }
    all
}

/// Query and key of a head, and its gates of the output.
fn parts<'a>(
    data: &Data,
    shape: &DeltaShape,
    head: usize,
    x: &'a [f64],
    token: usize,
) -> (&'a [f64], &'a [f64], Vec<f64>) {
    let first = head / (shape.value_heads / shape.key_heads) * shape.key_dim;
    let (keys, channels) = (shape.key_width(), shape.channels());
    let query = &x[first..first + shape.key_dim];
    let key = &x[keys + first..keys + first + shape.key_dim];
    let gates = &data.projected[token][channels + head * shape.value_dim..][..shape.value_dim];
    (
        query,
        key,
        gates.iter().map(|gate| silu(wide(*gate))).collect(),
    )
}

fn delta(
    data: &Data,
    shape: &DeltaShape,
    head: usize,
    x: &[f64],
    token: usize,
    state: &mut [f64],
) -> Vec<f64> {
    let (query, key, silu) = parts(data, shape, head, x, token);
    let (query, key, dim) = (unit(query), unit(key), shape.key_dim);
    let gates = &data.gates[token];
    let strength = 1.0 / (1.0 + (-wide(gates[head])).exp());
    let step = wide(gates[shape.value_heads + head]) + wide(data.dt_bias[head]);
    let decay = (-wide(data.a_log[head]).exp() * step.exp().ln_1p()).exp();
    state.iter_mut().for_each(|value| *value *= decay);
    let mut output = vec![0.0; shape.value_dim];
    for (column, output) in output.iter_mut().enumerate() {
        let place = |row: usize| row * shape.value_dim + column;
        let found: f64 = (0..dim).map(|row| state[place(row)] * key[row]).sum();
        let value = x[2 * shape.key_width() + head * shape.value_dim + column];
        let update = strength * (value - found);
        (0..dim).for_each(|row| state[place(row)] += key[row] * update);
        let sum: f64 = (0..dim).map(|row| state[place(row)] * query[row]).sum();
        *output = sum / (dim as f64).sqrt();
    }
    let squares: f64 = output.iter().map(|x| x * x).sum();
    let rms = (squares / shape.value_dim as f64 + wide(data.eps)).sqrt();
    let normed = output
        .iter()
        .zip(&data.norm)
        .map(|(x, weight)| wide(*weight) * x / rms);
    normed.zip(silu).map(|(x, silu)| x * silu).collect()
}

fn mamba2(
    data: &Data,
    shape: &DeltaShape,
    head: usize,
    x: &[f64],
    token: usize,
    state: &mut [f64],
) -> Vec<f64> {
    let (query, key, silu) = parts(data, shape, head, x, token);
    let dt = wide(data.gates[token][head]) + wide(data.dt_bias[head]);
    let step = dt.exp().ln_1p();
    let decay = (-wide(data.a_log[head]).exp() * step).exp();
    let output = (0..shape.value_dim).map(|column| {
        let x = x[2 * shape.key_width() + head * shape.value_dim + column];
        let mut sum = wide(data.skip[head]) * x;
        for row in 0..shape.key_dim {
            let value = &mut state[row * shape.value_dim + column];
            *value = *value * decay + step * x * key[row];
            sum += *value * query[row];
        }
        sum
    });
    output.zip(silu).map(|(y, silu)| y * silu).collect()
}

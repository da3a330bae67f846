//! The gated delta rule in plain f64 arithmetic.

use super::world::Data;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

/// Outputs of the tokens of a text.
pub fn outputs(data: &Data, tokens: &[usize]) -> Vec<Vec<f64>> {
    let shape = data.shape;
    let (channels, keys, dim) = (shape.channels(), shape.key_width(), shape.key_dim);
    let wide = |x: f32| f64::from(x);
    let mut states = vec![vec![0.0; dim * shape.value_dim]; shape.value_heads];
    let mut all = Vec::new();
    for at in 0..tokens.len() {
        let convolved = |channel: usize| {
            let taps = (0..shape.taps).filter(|tap| at + tap + 1 >= shape.taps);
            let products = taps.map(|tap| {
                let token = tokens[at + tap + 1 - shape.taps];
                let weight = data.convolution[tap * channels + channel];
                wide(weight) * wide(data.projected[token][channel])
            });
            silu(products.sum())
        };
        let x: Vec<f64> = (0..channels).map(convolved).collect();
        let (row, gates) = (&data.projected[tokens[at]], &data.gates[tokens[at]]);
        let mut out = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let first = head / (shape.value_heads / shape.key_heads) * dim;
            let query = unit(&x[first..first + dim]);
            let key = unit(&x[keys + first..keys + first + dim]);
            let strength = 1.0 / (1.0 + (-wide(gates[head])).exp());
            let step = wide(gates[shape.value_heads + head]) + wide(data.dt_bias[head]);
            let decay = (-wide(data.a_log[head]).exp() * step.exp().ln_1p()).exp();
            state.iter_mut().for_each(|value| *value *= decay);
            let mut output = vec![0.0; shape.value_dim];
            for (column, output) in output.iter_mut().enumerate() {
                let place = |row: usize| row * shape.value_dim + column;
                let found: f64 = (0..dim).map(|row| state[place(row)] * key[row]).sum();
                let value = x[2 * keys + head * shape.value_dim + column];
                let update = strength * (value - found);
                (0..dim).for_each(|row| state[place(row)] += key[row] * update);
                let sum: f64 = (0..dim).map(|row| state[place(row)] * query[row]).sum();
                *output = sum / (dim as f64).sqrt();
            }
            let squares: f64 = output.iter().map(|x| x * x).sum();
            let rms = (squares / shape.value_dim as f64 + wide(data.eps)).sqrt();
            for (column, output) in output.iter().enumerate() {
                let gate = wide(row[channels + head * shape.value_dim + column]);
                out.push(wide(data.norm[column]) * output / rms * silu(gate));
            }
        }
        all.push(out);
    }
    all
}

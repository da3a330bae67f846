//! Ends of blocks, norms over all heads together, GELU, and logits that are scaled.

use lockstep_backend::{
    AttentionShape, BlockEnd, CountedKeys, Holds, LogitScaling, Memory as _, Norm, Ops as _,
    RmsNorm, WholeNorms,
};
use lockstep_backend_cpu::Isa;
use lockstep_types::{Activation, Dtype};
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, tensor};

const EPS: f32 = 1e-5;

fn close(got: f32, exact: f64, what: &str) {
    let limit = exact.abs().max(0.25) * 1e-5;
    assert!(
        (f64::from(got) - exact).abs() <= limit,
        "{what}: {got} instead of {exact}"
    );
}

/// A norm in plain arithmetic; with a bias a layer norm.
fn normed(x: &[f64], weight: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let width = x.len() as f64;
    let mean = bias.map_or(0.0, |_| x.iter().sum::<f64>() / width);
    let squares: f64 = x.iter().map(|x| (x - mean).powi(2)).sum();
    let scale = 1.0 / (squares / width + f64::from(EPS)).sqrt();
    let one = |i: usize| {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
        (x[i] - mean) * scale * f64::from(weight[i]) + bias
    };
    (0..x.len()).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Every kind of end, on every instruction set with the same bits.
    #[test]
    fn blocks_end_as_plain_arithmetic_says(
        n in 0usize..12,
        width in 2usize..300,
        adds: bool,
        output: bool,
        next in 0usize..3,
        seed: u64,
    ) {
        let mut values = Values::new(seed);
        let (x, delta) = (values.floats(n * width), values.floats(n * width));
        let [first_weight, weight, bias] = [(); 3].map(|()| values.floats(width));
        let mut bits_of_first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let vectors = [&first_weight, &weight, &bias].map(|v| backend.load_vector(v).unwrap());
            let rms = |at: usize| RmsNorm { weight: &vectors[at], eps: EPS };
            let end = BlockEnd {
                output: output.then(|| rms(0)),
                next: match next {
                    0 => None,
                    1 => Some(Norm::Rms(rms(1))),
                    _ => Some(Norm::Layer { norm: rms(1), bias: &vectors[2] }),
                },
            };
            let mut residual = tensor(&mut backend, &x, width);
            let added = tensor(&mut backend, &delta, width);
            let mut out = backend.tensor(n, width, Holds::Operand).unwrap();
            backend.end_block(&mut residual, adds.then_some(&added), end, &mut out);
            for row in 0..n {
                let row = row * width..(row + 1) * width;
                let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
                let delta = match (adds, output) {
                    (false, _) => vec![0.0; width],
                    (true, false) => wide(&delta[row.clone()]),
                    (true, true) => normed(&wide(&delta[row.clone()]), &first_weight, None),
                };
                let sum: Vec<f64> = wide(&x[row.clone()]).iter().zip(&delta).map(|(x, d)| x + d).collect();
                let read = match next {
                    0 => sum.clone(),
                    1 => normed(&sum, &weight, None),
                    _ => normed(&sum, &weight, Some(&bias)),
                };
                let pairs = residual.values()[row.clone()].iter().zip(&sum);
                pairs.for_each(|(got, exact)| close(*got, *exact, "the residual"));
                let pairs = out.values()[row].iter().zip(&read);
                pairs.for_each(|(got, exact)| close(*got, *exact, "what is read"));
            }
            let found = bits(out.values());
            prop_assert_eq!(bits_of_first.get_or_insert_with(|| found.clone()), &found);
        }
    }

    /// Ranks with copies of key heads sum the squares of each head once.
    #[test]
    fn ranks_norm_all_heads_together(
        n in 1usize..6,
        (heads, kv_heads, ranks) in prop::sample::select(vec![
            (4, 4, 1), (4, 2, 1), (4, 2, 2), (4, 2, 4), (8, 2, 4), (12, 4, 3), (6, 1, 3),
        ]),
        dim in 1usize..40,
        seed: u64,
    ) {
        let (all, mut values) = (AttentionShape::dense(heads, kv_heads, dim, 1.0), Values::new(seed));
        let x = values.floats(n * all.qkv_width());
        let [queries, keys] = [heads * dim, kv_heads * dim];
        let [query_weight, key_weight] = [queries, keys].map(|len| values.floats(len));
        let (local, group) = (heads / ranks, heads / kv_heads);
        let served = (1..=local).rev().find(|s| local % s == 0 && group % s == 0).unwrap();
        let shape = AttentionShape::dense(local, local / served, dim, 1.0);
        // Columns of each rank's heads, of queries and of keys, in the whole model's.
        let columns = |rank: usize| {
            let own = rank * local * dim..(rank + 1) * local * dim;
            let of_head = |first: usize| {
                let head = first / group;
                head * dim..(head + 1) * dim
            };
            let own_keys = (rank * local..(rank + 1) * local).step_by(served).flat_map(of_head);
            (own, own_keys.collect::<Vec<_>>())
        };
        let mut backend = backend(Isa::detect(), Dtype::Float32, 2);
        let mut parts = Vec::new();
        let mut total = vec![0.0_f32; 2 * n];
        for rank in 0..ranks {
            let (own, own_keys) = columns(rank);
            let row = |row: usize| -> Vec<f32> {
                let x = &x[row * all.qkv_width()..][..all.qkv_width()];
                let keys = own_keys.iter().map(|column| x[queries + column]);
                let values = own_keys.iter().map(|column| x[queries + column]);
                x[own.clone()].iter().copied().chain(keys.clone()).chain(values).collect()
            };
            let rows: Vec<f32> = (0..n).flat_map(row).collect();
            let qkv = tensor(&mut backend, &rows, shape.qkv_width());
            let mut sums = backend.tensor(n, 2, Holds::Sum).unwrap();
            let counted = CountedKeys { first: rank * local, served, group };
            backend.square_sums(&qkv, &shape, counted, &mut sums);
            total.iter_mut().zip(sums.values()).for_each(|(total, sum)| *total += sum);
            parts.push((qkv, own, own_keys));
        }
        let sums = tensor(&mut backend, &total, 2);
        for (mut qkv, own, own_keys) in parts {
            let query_vector = backend.load_vector(&query_weight[own.clone()]).unwrap();
            let own_weights: Vec<f32> = own_keys.iter().map(|column| key_weight[*column]).collect();
            let key_vector = backend.load_vector(&own_weights).unwrap();
            let norms = WholeNorms {
                queries: &query_vector,
                keys: &key_vector,
                widths: [queries, keys],
                eps: EPS,
            };
            backend.whole_norm(&mut qkv, &shape, &sums, &norms);
            for row in 0..n {
                let whole: Vec<f64> =
                    x[row * all.qkv_width()..][..queries + keys].iter().map(|x| f64::from(*x)).collect();
                let of_queries = normed(&whole[..queries], &query_weight, None);
                let of_keys = normed(&whole[queries..], &key_weight, None);
                let got = &qkv.values()[row * shape.qkv_width()..];
                for (at, column) in own.clone().enumerate() {
                    close(got[at], of_queries[column], "queries");
                }
                for (at, column) in own_keys.iter().enumerate() {
                    close(got[own.len() + at], of_keys[*column], "keys");
                }
            }
        }
    }

    #[test]
    fn gelu_and_bounds_are_those_of_plain_arithmetic(n in 1usize..8, width in 1usize..300, seed: u64) {
        let floats = Values::new(seed).floats(2 * n * width);
        let x: Vec<f32> = floats.iter().map(|x| x * 8.0).collect();
        let gelu = |x: f64| {
            let argument = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + argument.tanh())
        };
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let gate_up = tensor(&mut backend, &x, 2 * width);
            let mut gated = backend.tensor(n, width, Holds::Operand).unwrap();
            backend.gate(&gate_up, Activation::GeluTanh, &mut gated);
            for (row, out) in x.chunks(2 * width).zip(gated.values().chunks(width)) {
                for i in 0..width {
                    let (gate, up) = (f64::from(row[i]), f64::from(row[width + i]));
                    close(out[i], gelu(gate) * up, "a gate");
                }
            }
            let mut out = backend.tensor(n, 2 * width, Holds::Operand).unwrap();
            backend.activate(&gate_up, Activation::GeluTanh, &mut out);
            x.iter().zip(out.values()).for_each(|(x, got)| close(*got, gelu(f64::from(*x)), "GELU"));
            let mut logits = tensor(&mut backend, &x, 2 * width);
            let scaling = LogitScaling { divisor: 1.5, softcap: Some(3.0) };
            backend.scale_logits(&mut logits, scaling);
            for (x, got) in x.iter().zip(logits.values()) {
                close(*got, 3.0 * (f64::from(*x) / 1.5 / 3.0).tanh(), "a logit");
            }
            let all = bits(&[gated.values(), out.values(), logits.values()].concat());
            prop_assert_eq!(first.get_or_insert_with(|| all.clone()), &all);
        }
    }
}

//! Operations whose rows stand alone: norms, rotation, activation, embedding.

use lockstep_backend::{
    AttentionShape, Batch, Holds, Memory as _, Ops as _, RmsNorm, RopeTable, Rows,
};
use lockstep_backend_cpu::{CpuBackend, CpuTensor, Isa};
use lockstep_types::{Activation, Dtype};
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, matrix, rounded, staged, tensor, tokens, variants};

const EPS: f32 = 1e-5;

fn close(got: f32, exact: f64, what: &str) {
    let limit = exact.abs().max(0.25) * 4e-6;
    assert!(
        (f64::from(got) - exact).abs() <= limit,
        "{what}: {got} instead of {exact}"
    );
}

fn norm(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(&x, &w)| f64::from(x) * scale * f64::from(w))
        .collect()
}

fn table(positions: usize, half: usize) -> RopeTable {
    let angle = |i: usize| (i / half) as f64 * 10_000f64.powf(-((i % half) as f64) / half as f64);
    RopeTable {
        queries: Vec::new(),
        half,
        cos: (0..positions * half)
            .map(|i| angle(i).cos() as f32)
            .collect(),
        sin: (0..positions * half)
            .map(|i| angle(i).sin() as f32)
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn norms_are_those_of_plain_arithmetic(n in 0usize..40, width in 1usize..900, seed: u64) {
        let mut values = Values::new(seed);
        let (x, delta) = (values.floats(n * width), values.floats(n * width));
        let weight = values.floats(width);
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let weight_vector = backend.load_vector(&weight).unwrap();
            let mut residual = tensor(&mut backend, &x, width);
            let delta_tensor = tensor(&mut backend, &delta, width);
            let mut out = backend.tensor(n, width, Holds::Operand).unwrap();
            backend.rms_norm(&residual, &weight_vector, EPS, &mut out);
            for (row, out) in x.chunks(width).zip(out.values().chunks(width)) {
                norm(row, &weight).iter().zip(out).for_each(|(e, g)| close(*g, *e, "rms_norm"));
            }
            let end = RmsNorm { weight: &weight_vector, eps: EPS }.into();
            backend.end_block(&mut residual, Some(&delta_tensor), end, &mut out);
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
            prop_assert_eq!(bits(residual.values()), bits(&sum));
            for (row, out) in sum.chunks(width).zip(out.values().chunks(width)) {
                norm(row, &weight).iter().zip(out).for_each(|(e, g)| close(*g, *e, "end_block"));
            }
            let first = first.get_or_insert_with(|| bits(out.values()));
            prop_assert_eq!(&*first, &bits(out.values()));
        }
    }

    #[test]
    fn heads_are_normed_and_rotated_in_place(
        n in 1usize..200,
        heads in 1usize..5,
        half in 1usize..40,
        seed: u64,
    ) {
        let shape = AttentionShape::dense(2 * heads, heads, 2 * half, 1.0);
        let width = shape.qkv_width();
        let mut values = Values::new(seed);
        let (x, weight) = (values.floats(n * width), values.floats(2 * half));
        let positions: Vec<u32> = (0..n).map(|_| values.below(300) as u32).collect();
        let table = table(300, half);
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let mut qkv = tensor(&mut backend, &x, width);
            let rope = backend.load_rope(table.clone()).unwrap();
            let vector = backend.load_vector(&weight).unwrap();
            backend.head_norm(&mut qkv, &shape, 1..3 * heads, &vector, EPS);
            let normed = qkv.values().to_vec();
            let inputs = tokens(&mut backend, &positions);
            backend.rope(&mut qkv, &shape, &rope, &inputs);
            for (row, &position) in positions.iter().enumerate() {
                for head in 0..4 * heads {
                    let at = row * width + head * 2 * half;
                    let source = &x[at..at + 2 * half];
                    let expected = if (1..3 * heads).contains(&head) {
                        norm(source, &weight)
                    } else {
                        source.iter().map(|&x| f64::from(x)).collect()
                    };
                    let got = &normed[at..at + 2 * half];
                    expected.iter().zip(got).for_each(|(e, g)| close(*g, *e, "head_norm"));
                    let rotated = &qkv.values()[at..at + 2 * half];
                    for i in 0..half {
                        let angle = position as usize * half + i;
                        let (a, b) = (f64::from(got[i]), f64::from(got[half + i]));
                        let (cos, sin) = (f64::from(table.cos[angle]), f64::from(table.sin[angle]));
                        let is_value = head >= 3 * heads;
                        let (low, high) =
                            if is_value { (a, b) } else { (a * cos - b * sin, b * cos + a * sin) };
                        close(rotated[i], low, "rope");
                        close(rotated[half + i], high, "rope");
                    }
                }
            }
            let first = first.get_or_insert_with(|| bits(qkv.values()));
            prop_assert_eq!(&*first, &bits(qkv.values()));
        }
    }

    #[test]
    fn activation_is_that_of_plain_arithmetic(n in 0usize..30, width in 1usize..900, seed: u64) {
        let x: Vec<f32> = Values::new(seed).floats(2 * n * width).iter().map(|x| x * 20.0).collect();
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let mut backend = backend(isa, Dtype::Float32, 2);
            let gate_up = tensor(&mut backend, &x, 2 * width);
            let mut out = backend.tensor(n, width, Holds::Operand).unwrap();
            backend.gate(&gate_up, Activation::Silu, &mut out);
            for (row, out) in x.chunks(2 * width).zip(out.values().chunks(width)) {
                for i in 0..width {
                    let (gate, up) = (f64::from(row[i]), f64::from(row[width + i]));
                    close(out[i], gate / (1.0 + (-gate).exp()) * up, "silu_mul");
                }
            }
            let first = first.get_or_insert_with(|| bits(out.values()));
            prop_assert_eq!(&*first, &bits(out.values()));
        }
    }
}

#[test]
fn extreme_gates_stay_finite() {
    for isa in Isa::available() {
        let mut backend = backend(isa, Dtype::Float32, 1);
        let x = [-1e30, -100.0, 0.0, 100.0, 1.0, 1.0, 1.0, 1.0];
        let gate_up = tensor(&mut backend, &x, 8);
        let mut out = backend.tensor(1, 4, Holds::Operand).unwrap();
        backend.gate(&gate_up, Activation::Silu, &mut out);
        assert!(
            out.values()[..3].iter().all(|x| x.abs() < 1e-30),
            "{:?}",
            out.values()
        );
        assert_eq!(out.values()[3], 100.0);
    }
}

#[test]
fn embedding_reads_packed_rows_and_skips_other_shards() {
    for (isa, dtype) in variants() {
        let mut backend = backend(isa, dtype, 2);
        for cols in [1, 7, 64] {
            let values = Values::new(9).floats(100 * cols);
            let table = matrix(&mut backend, &values, cols);
            let ids: Vec<u32> = (0..900).map(|i| i * 7 % 260).collect();
            let inputs = tokens(&mut backend, &ids);
            let mut out: CpuTensor = backend.tensor(ids.len(), cols, Holds::Operand).unwrap();
            out.values_mut().fill(f32::NAN);
            backend.embed(&table, 100, 1.0, &inputs, &mut out);
            for (row, &token) in out.values().chunks(cols).zip(&ids) {
                for (col, &got) in row.iter().enumerate() {
                    let expected = match token {
                        100..200 => rounded(values[(token as usize - 100) * cols + col], dtype),
                        _ => 0.0,
                    };
                    assert_eq!(f64::from(got), expected);
                }
            }
        }
    }
}

fn gather(backend: &mut CpuBackend, x: &[f32], width: usize, rows: &[u32]) -> Vec<f32> {
    let x = tensor(backend, x, width);
    let mut out = backend.tensor(rows.len(), width, Holds::Operand).unwrap();
    backend.gather_rows(&x, Rows::List(rows), &mut out);
    out.values().to_vec()
}

#[test]
fn gathering_copies_rows() {
    let mut backend = backend(Isa::detect(), Dtype::Float32, 3);
    let x = Values::new(1).floats(50 * 11);
    let rows: Vec<u32> = (0..5_000).map(|i| i * 13 % 50).collect();
    let out = gather(&mut backend, &x, 11, &rows);
    for (out, &row) in out.chunks(11).zip(&rows) {
        assert_eq!(out, &x[row as usize * 11..(row as usize + 1) * 11]);
    }
    assert!(gather(&mut backend, &x, 11, &[]).is_empty());
}

#[test]
fn wanted_rows_are_those_of_the_batch() {
    let mut backend = backend(Isa::detect(), Dtype::Float32, 3);
    let values = Values::new(2).floats(50 * 11);
    let (all, wanted): (Vec<u32>, Vec<u32>) = ((0..50).collect(), (0..50).step_by(3).collect());
    let batch = Batch {
        tokens: &all,
        positions: &all,
        cells: &all,
        logit_tokens: &wanted,
        ..Batch::default()
    };
    let (inputs, x) = (
        staged(&mut backend, &batch, 1),
        tensor(&mut backend, &values, 11),
    );
    let mut out = backend.tensor(wanted.len(), 11, Holds::Operand).unwrap();
    for range in [0..9, 9..17, 4..4] {
        backend.set_rows(&mut out, range.len());
        backend.gather_rows(&x, Rows::Wanted(&inputs, range.clone()), &mut out);
        let listed = gather(&mut backend, &values, 11, &wanted[range]);
        assert_eq!(bits(out.values()), bits(&listed));
    }
    for range in [0..17, 16..17, 5..40, 9..9] {
        let mut out = backend.tensor(range.len(), 11, Holds::Operand).unwrap();
        backend.gather_rows(&x, Rows::Range(range.clone()), &mut out);
        let own = &values[11 * range.start..11 * range.end];
        assert_eq!(bits(out.values()), bits(own));
    }
}

#[test]
#[should_panic(expected = "every token has a position, and a cell in each group")]
fn a_batch_that_contradicts_itself_is_not_staged() {
    let batch = Batch {
        tokens: &[1],
        ..Batch::default()
    };
    staged(&mut backend(Isa::detect(), Dtype::Float32, 1), &batch, 1);
}

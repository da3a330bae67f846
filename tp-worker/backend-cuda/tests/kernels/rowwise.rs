//! Lookups, norms and activations.

use lockstep_backend_cuda::{Element, Rows, RowwiseOps, Sums};
use lockstep_types::Activation;

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, assert_close, bits, rounded, tokens, tolerance};

/// Runs `check` for both types of operands, under several orders.
fn for_all(check: impl Fn(&Gpu, &RowwiseOps, &mut Noise)) {
    let gpu = Gpu::new();
    for element in ELEMENTS {
        let operations = RowwiseOps::new(&gpu.context, &gpu.compiler, element).expect("kernels");
        assert_eq!(operations.operand(), element);
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            check(&gpu, &operations, &mut Noise(seed));
        }
    }
}

fn wide(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|value| f64::from(*value))
}

fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = wide(x).map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = (mean + f64::from(eps)).sqrt().recip();
    wide(x)
        .zip(wide(weight))
        .map(|(x, w)| x * scale * w)
        .collect()
}

#[test]
fn tokens_are_looked_up_in_their_shard() {
    for_all(|gpu, operations, noise| {
        let (rows, width, first) = (noise.rows(), noise.width(), 1 + noise.below(50));
        let table = rounded(operations.operand(), &noise.floats(rows * width));
        let ids: Vec<u32> = (0..noise.rows())
            .map(|_| noise.below(first + 2 * rows) as u32)
            .collect();
        let inputs = gpu.inputs(&tokens(&ids), 1);
        let mut out = gpu.poisoned(Element::F32, ids.len() * width);
        let on_device = gpu.floats(operations.operand(), &table);
        operations
            .embed(
                &gpu.stream,
                &on_device,
                width,
                (first as u32, 1.0),
                &inputs,
                &mut out,
            )
            .expect("a launch");
        let row = |id: &u32| match (*id as usize).checked_sub(first) {
            Some(row) if row < rows => table[row * width..][..width].to_vec(),
            _ => vec![0.0; width],
        };
        let wanted: Vec<f32> = ids.iter().flat_map(row).collect();
        assert_eq!(gpu.read(&out), wanted);
    });
}

#[test]
fn norms_are_those_of_plain_loops() {
    for_all(|gpu, operations, noise| {
        let (rows, width, eps) = (noise.rows(), noise.width(), 1e-5);
        let (x, delta) = (noise.floats(rows * width), noise.floats(rows * width));
        let weight = noise.floats(width);
        let on_device = gpu.buffer(&weight);
        let mut residual = gpu.floats(Element::F32, &x);
        let added = gpu.floats(Element::F32, &delta);
        let all = Rows::fixed(rows);
        let (mut plain, mut after_sum) = (
            gpu.poisoned(operations.operand(), rows * width),
            gpu.poisoned(operations.operand(), rows * width),
        );
        let stream = &gpu.stream;
        operations
            .rms_norm(stream, &residual, &on_device, eps, all, &mut plain)
            .expect("a launch");
        operations
            .add_rms_norm(
                stream,
                &mut residual,
                &added,
                &on_device,
                eps,
                all,
                &mut after_sum,
            )
            .expect("a launch");
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
        let norm_rows = |x: &[f32]| -> Vec<f64> {
            x.chunks(width)
                .flat_map(|row| normed(row, &weight, eps))
                .collect()
        };
        let tolerance = tolerance(operations.operand());
        assert_close(&gpu.read(&plain), &norm_rows(&x), tolerance);
        assert_eq!(gpu.read(&residual), sum);
        assert_close(&gpu.read(&after_sum), &norm_rows(&sum), tolerance);
    });
}

/// Widths up to and behind those that registers hold, in both kernels, and numbers of parts
/// around those that are on their way at once.
#[test]
fn parts_are_added_in_their_order_in_front_of_a_norm() {
    let gpu = Gpu::new();
    let made = RowwiseOps::new(&gpu.context, &gpu.compiler, Element::F32);
    let operations = made.expect("kernels");
    let widths = [1028, 2052, 4096, 4100, 8192, 8196];
    for (turn, width) in widths.into_iter().enumerate() {
        let _order = lockstep_fake_cuda::order(turn as u64);
        let noise = &mut Noise(turn as u64);
        let (x, weight) = (noise.floats(width), noise.floats(width));
        let on_device = gpu.buffer(&weight);
        for parts in [1, 2, 3, 4, 5, 8, 9, 16] {
            let delta = noise.floats(parts * width);
            let each = |column: usize| {
                let later = (1..parts).map(|part| delta[part * width + column]);
                x[column] + later.fold(delta[column], |sum, part| sum + part)
            };
            let wanted: Vec<f32> = (0..width).map(each).collect();
            let mut residual = gpu.floats(Element::F32, &x);
            let delta = gpu.floats(Element::F32, &delta);
            let mut out = gpu.poisoned(Element::F32, width);
            let (stream, sums, one) = (&gpu.stream, Sums::of_parts(&delta, parts), Rows::fixed(1));
            operations
                .add_rms_norm(stream, &mut residual, sums, &on_device, 1e-5, one, &mut out)
                .expect("a launch");
            assert_eq!(
                bits(&gpu.read(&residual)),
                bits(&wanted),
                "{width}, {parts} parts"
            );
            let normed = normed(&wanted, &weight, 1e-5);
            assert_close(&gpu.read(&out), &normed, tolerance(Element::F32));
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_those_that_are_not_there_stay() {
    for_all(|gpu, operations, noise| {
        let (rows, width) = (2 + noise.rows(), noise.width());
        let x = noise.floats(rows * width);
        let weight = gpu.buffer(&noise.floats(width));
        let norm = |x: &[f32], rows: Rows<'_>| {
            let mut out = gpu.poisoned(operations.operand(), x.len());
            let x = gpu.floats(Element::F32, x);
            operations
                .rms_norm(&gpu.stream, &x, &weight, 1e-6, rows, &mut out)
                .expect("a launch");
            gpu.read(&out)
        };
        let together = norm(&x, Rows::fixed(rows));
        let last = &x[(rows - 1) * width..];
        let alone = norm(last, Rows::fixed(1));
        assert_eq!(bits(&alone), bits(&together[(rows - 1) * width..]));

        let there = noise.below(rows);
        let counts = gpu.buffer(&[u32::MAX, there as u32]);
        let counted = norm(&x, Rows::counted(rows, &counts, 1));
        let (before, behind) = counted.split_at(there * width);
        assert_eq!(bits(before), bits(&together[..there * width]));
        assert!(behind.iter().all(|value| value.is_nan()));
        let capped = norm(&x, Rows::counted(rows, &counts, 0));
        assert_eq!(bits(&capped), bits(&together));
    });
}

#[test]
fn activations_are_those_of_plain_loops() {
    for_all(|gpu, operations, noise| {
        let (rows, width) = (noise.rows(), noise.width());
        let all = Rows::fixed(rows);
        let stream = &gpu.stream;
        let gate_up: Vec<f32> = noise
            .floats(2 * rows * width)
            .iter()
            .map(|x| 8.0 * x)
            .collect();
        let mut activated = gpu.poisoned(operations.operand(), rows * width);
        let on_device = gpu.floats(Element::F32, &gate_up);
        operations
            .gate(
                stream,
                &on_device,
                Activation::Silu,
                width,
                all,
                &mut activated,
            )
            .expect("a launch");
        let silu = |row: &[f32]| -> Vec<f64> {
            let (gate, up) = row.split_at(width);
            let both = wide(gate).zip(wide(up));
            both.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                .collect()
        };
        let wanted: Vec<f64> = gate_up.chunks(2 * width).flat_map(silu).collect();
        let tolerance = tolerance(operations.operand());
        assert_close(&gpu.read(&activated), &wanted, tolerance);
    });
}

//! Copies of rows and columns, and conversions between types: exact.

use lockstep_backend::{Batch, Row};
use lockstep_backend_cuda::{Element, Indices, Rows, RowwiseOps};

use crate::support::{ELEMENTS, Gpu, Noise, SEEDS, bits, rounded};

fn for_all(check: impl Fn(&Gpu, &RowwiseOps, Element, &mut Noise)) {
    let gpu = Gpu::new();
    let operations = RowwiseOps::new(&gpu.context, &gpu.compiler, Element::F32).expect("kernels");
    for element in ELEMENTS {
        for seed in SEEDS {
            let _order = lockstep_fake_cuda::order(seed);
            check(&gpu, &operations, element, &mut Noise(seed));
        }
    }
}

/// Widths for which rows are copied in units of 2, 4 and 16 bytes.
fn widths(noise: &mut Noise) -> [usize; 3] {
    [
        1 + 2 * noise.below(40),
        2 + 4 * noise.below(80),
        8 * (1 + noise.below(50)),
    ]
}

#[test]
fn rows_are_gathered() {
    for_all(|gpu, operations, element, noise| {
        for width in widths(noise) {
            let rows = noise.rows();
            let x = rounded(element, &noise.floats(rows * width));
            let wanted: Vec<u32> = (0..rows as u32).filter(|_| noise.below(3) > 0).collect();
            let on_device = gpu.floats(element, &x);
            let ids = vec![0; rows];
            let batch = Batch {
                tokens: &ids,
                positions: &ids,
                cells: &ids,
                rows: &[Row {
                    start: 0,
                    q_len: rows as u32,
                    kv_len: 0,
                    pages_start: 0,
                    mask: None,
                }],
                pages: &[0],
                logit_tokens: &wanted,
                ..Batch::default()
            };
            let inputs = gpu.inputs(&batch, 128);
            let gathered: Vec<f32> = wanted
                .iter()
                .flat_map(|row| &x[*row as usize * width..][..width])
                .copied()
                .collect();
            let list = gpu.buffer(&wanted);
            let (all, skipped) = (wanted.len(), noise.below(wanted.len() + 1));
            let ways = [
                (Indices::List(&list, 0), Rows::fixed(all)),
                (Indices::List(&list, skipped), Rows::fixed(all - skipped)),
                (Indices::Wanted(&inputs, 0), inputs.wanted()),
                (
                    Indices::Wanted(&inputs, skipped),
                    Rows::fixed(all - skipped),
                ),
            ];
            for ((indices, count), to) in ways.into_iter().zip(ELEMENTS.iter().cycle()) {
                let gathered = &gathered[(all - count.most()) * width..];
                let mut out = gpu.poisoned(*to, gathered.len());
                operations
                    .gather_rows(
                        &gpu.stream,
                        &on_device,
                        width,
                        Some(indices),
                        count,
                        &mut out,
                    )
                    .expect("a launch");
                assert_eq!(gpu.read(&out), rounded(*to, gathered));
            }
        }
    });
}

#[test]
fn rows_are_copied_and_others_stay() {
    for_all(|gpu, operations, element, noise| {
        for width in widths(noise) {
            let rows = 2 + noise.rows();
            let x = rounded(element, &noise.floats(rows * width));
            let to_element = ELEMENTS[noise.below(2)];
            let mut expected = rounded(to_element, &noise.floats(rows * width));
            let mut out = gpu.floats(to_element, &expected);
            // Every third row goes to the first rows, in reverse; one more names a row that
            // does not exist.
            let from: Vec<u32> = (0..rows as u32).step_by(3).collect();
            let mut to: Vec<u32> = (0..from.len() as u32).rev().collect();
            to[0] = rows as u32;
            for (from, to) in from.iter().zip(&to).skip(1) {
                let source = &x[*from as usize * width..][..width];
                let source = rounded(to_element, source);
                expected[*to as usize * width..][..width].copy_from_slice(&source);
            }
            let (both, split) = (gpu.buffer(&[&from[..], &to[..]].concat()), from.len());
            let (from, to) = (Indices::List(&both, 0), Indices::List(&both, split));
            let count = Rows::fixed(split);
            let on_device = gpu.floats(element, &x);
            operations
                .copy_rows(&gpu.stream, &on_device, from, width, count, &mut out, to)
                .expect("a launch");
            assert_eq!(gpu.read(&out), expected);
        }
    });
}

#[test]
fn columns_are_placed() {
    for_all(|gpu, operations, element, noise| {
        for width in widths(noise) {
            let (rows, first) = (noise.rows(), noise.below(20));
            let out_width = first + width + noise.below(9);
            let x = noise.floats(rows * width);
            let to = ELEMENTS[noise.below(2)];
            let mut out = gpu.poisoned(to, rows * out_width);
            let on_device = gpu.floats(element, &x);
            let count = Rows::fixed(rows);
            operations
                .place_columns(
                    &gpu.stream,
                    &on_device,
                    width,
                    count,
                    &mut out,
                    out_width,
                    first,
                )
                .expect("a launch");
            let x = rounded(to, &rounded(element, &x));
            let found = gpu.read(&out);
            for (found, x) in found.chunks(out_width).zip(x.chunks(width)) {
                assert_eq!(&found[first..first + width], x);
                let others = found[..first].iter().chain(&found[first + width..]);
                assert!(others.copied().all(f32::is_nan));
            }
            let back = ELEMENTS[noise.below(2)];
            let mut taken = gpu.poisoned(back, rows * width);
            operations
                .take_columns(
                    &gpu.stream,
                    &out,
                    out_width,
                    first,
                    count,
                    &mut taken,
                    width,
                )
                .expect("a launch");
            assert_eq!(gpu.read(&taken), rounded(back, &x));
        }
    });
}

#[test]
fn types_are_cast_to_the_nearest() {
    for_all(|gpu, operations, element, noise| {
        let (rows, width) = (noise.rows(), noise.width());
        let mut x = noise.floats(rows * width);
        // Ties, overflows and NaNs.
        let special = [
            257.0 / 256.0,
            259.0 / 256.0,
            3.4e38,
            -0.0,
            f32::INFINITY,
            f32::NAN,
        ];
        x.iter_mut()
            .zip(special)
            .for_each(|(x, special)| *x = special);
        let x = rounded(element, &x);
        let on_device = gpu.floats(element, &x);
        for to in ELEMENTS {
            let mut out = gpu.poisoned(to, x.len());
            operations
                .cast(&gpu.stream, &on_device, width, Rows::fixed(rows), &mut out)
                .expect("a launch");
            let wanted = rounded(to, &x);
            let is_nan = |values: &[f32]| values.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
            let found = gpu.read(&out);
            assert_eq!(is_nan(&found), is_nan(&wanted));
            let numbers = |values: &[f32]| {
                let numbers = values.iter().copied().filter(|x| !x.is_nan());
                bits(&numbers.collect::<Vec<_>>())
            };
            assert_eq!(numbers(&found), numbers(&wanted));
        }
    });
}

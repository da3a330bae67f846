//! Products with weights rounded to integers.

use half::{bf16, f16};
use lockstep_backend::{
    CheckpointDtype, HostBlock, HostFloats, HostMatrix, Memory as _, WeightFormat,
};
use lockstep_backend_cpu::Isa;
use lockstep_types::Dtype;
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, matrix_in};
use crate::rounded::{Case, GROUP, dequantized, rounded_inputs};

const FORMATS: [WeightFormat; 2] = [WeightFormat::Int8, WeightFormat::Int4];

const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 127, 33),
    (2, 128, 96),
    (4, 129, 130),
    (5, 515, 31),
    (12, 256, 65),
    (8, 640, 33),
    (13, 300, 64),
    (16, 900, 95),
    (17, 385, 64),
    (26, 131, 40),
    (32, 1_025, 97),
    (70, 4_300, 65),
    (250, 1_100, 70),
];

#[test]
fn products_are_those_of_the_rounded_values() {
    for format in FORMATS {
        for (n, cols, rows) in SHAPES {
            let case = Case::new(n, cols, rows);
            let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
            let w = matrix_in(&mut backend, format, &case.w, cols);
            let weights = dequantized(&mut backend, &w, rows, cols);
            let out = case.multiply(&mut backend, &w, &case.x);
            for (i, x) in case.x.chunks_exact(cols).enumerate() {
                let x = rounded_inputs(x, 127.0);
                for j in 0..rows {
                    let (mut sum, mut size) = (f64::from(case.bias[j]), 1.0f64);
                    for (x, w) in x.iter().zip(&weights[j * cols..]) {
                        sum += x * f64::from(*w);
                        size += (x * f64::from(*w)).abs();
                    }
                    // One rounding of the scales' product, one of the sum per group, one of
                    // a weight read back, one of the bias.
                    let roundings = cols.div_ceil(GROUP) + 4;
                    let limit = size * roundings as f64 * f64::from(f32::EPSILON);
                    let got = f64::from(out[i * rows + j]);
                    assert!(
                        (got - sum).abs() <= limit,
                        "{format:?} {n} x {cols} x {rows} [{i}, {j}]: {got} instead of {sum}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    for format in FORMATS {
        for (n, cols, rows) in SHAPES {
            let case = Case::new(n, cols, rows);
            let plain = bits(&case.run(&mut backend(Isa::Scalar, Dtype::Bfloat16, 1), format));
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let out = case.run(&mut backend(isa, Dtype::Bfloat16, threads), format);
                    assert_eq!(bits(&out), plain, "{isa} {format:?} {n} x {cols} x {rows}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_row_does_not_depend_on_its_batch(
        n in 1usize..60,
        cols in 1usize..700,
        rows in 1usize..200,
        threads in 1usize..4,
    ) {
        let case = Case::new(n, cols, rows);
        for format in FORMATS {
            for isa in Isa::available() {
                let together = case.run(&mut backend(isa, Dtype::Bfloat16, threads), format);
                let mut single = backend(isa, Dtype::Bfloat16, 1);
                let w = matrix_in(&mut single, format, &case.w, cols);
                let rows = case.x.chunks_exact(cols);
                let alone: Vec<f32> = rows
                    .flat_map(|row| case.multiply(&mut single, &w, row))
                    .collect();
                prop_assert_eq!(bits(&together), bits(&alone), "{} {:?}", isa, format);
            }
        }
    }
}

/// Root of the mean squared error, relative to the root of the mean square.
fn relative_error(values: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let errors: f64 = values.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
    let squares: f64 = exact.iter().map(|&x| square(x)).sum();
    (errors / squares).sqrt()
}

/// Rows of normal values (sums of uniform ones), and rows in which one value
/// in 64 is ten times larger.
fn distributions(rows: usize, cols: usize) -> [Vec<f32>; 2] {
    let mut values = Values::new(11);
    let mut normal = || values.floats(12).iter().sum::<f32>() * 0.5;
    let plain: Vec<f32> = (0..rows * cols).map(|_| normal()).collect();
    let mut outliers = plain.clone();
    outliers.iter_mut().step_by(64).for_each(|x| *x *= 10.0);
    [plain, outliers]
}

fn read_back(format: WeightFormat, values: &[f32], cols: usize) -> Vec<f32> {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
    let w = matrix_in(&mut backend, format, values, cols);
    dequantized(&mut backend, &w, values.len() / cols, cols)
}

#[test]
fn int8_weights_lie_within_half_a_step() {
    let cols = 300;
    for values in distributions(70, cols) {
        let back = read_back(WeightFormat::Int8, &values, cols);
        for (row, back) in values.chunks(cols).zip(back.chunks(cols)) {
            for (group, back) in row.chunks(GROUP).zip(back.chunks(GROUP)) {
                let largest = group.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                let step = bf16::from_f32(largest / 127.0).to_f32();
                for (x, back) in group.iter().zip(back) {
                    assert!((x - back).abs() <= 0.5001 * step, "{back} for {x}");
                    assert_eq!((back / step).fract(), 0.0);
                }
            }
        }
        assert!(relative_error(&back, &values) < 0.02);
    }
}

/// Weights in blocks of 32, with an f16 scale of the value of largest magnitude over −8:
/// llama.cpp's Q4_0, 4.5 bits a weight.
fn q4_0(values: &[f32]) -> Vec<f32> {
    let blocks = values.chunks(32).flat_map(|block| {
        let largest = |a: f32, x: &f32| if x.abs() > a.abs() { *x } else { a };
        let exact = block.iter().fold(0.0, largest) / -8.0;
        let (inverse, scale) = (1.0 / exact, f16::from_f32(exact).to_f32());
        block.iter().map(move |x| {
            let integer = (x * inverse + 8.5).floor().min(15.0) - 8.0;
            integer * scale
        })
    });
    blocks.collect()
}

#[test]
fn int4_weights_are_closer_than_q4_0() {
    let cols = 512;
    for values in distributions(70, cols) {
        let ours = relative_error(&read_back(WeightFormat::Int4, &values, cols), &values);
        let theirs = relative_error(&q4_0(&values), &values);
        assert!(ours < theirs, "{ours} against {theirs}");
    }
}

/// A column that 4 bits hold exactly comes back exactly.
#[test]
fn int4_keeps_what_it_can_hold() {
    let cols = 256;
    let value = |i: usize| {
        let multiplier = [15.0, -3.0, 1.0, 7.0][i / 32 % 4];
        let integer = if i.is_multiple_of(32) {
            -8
        } else {
            (i * 7 % 16) as i32 - 8
        };
        integer as f32 * multiplier * 0.0625
    };
    let values: Vec<f32> = (0..40 * cols).map(value).collect();
    assert_eq!(read_back(WeightFormat::Int4, &values, cols), values);
}

#[test]
fn an_input_that_stands_out_spoils_its_group_alone() {
    let (cols, rows) = (3 * GROUP, 40);
    let mut case = Case::new(1, cols, rows);
    for row in case.w.chunks_exact_mut(cols) {
        row[GROUP..2 * GROUP].fill(0.0);
    }
    for format in FORMATS {
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
        let plain = case.run(&mut backend, format);
        let w = matrix_in(&mut backend, format, &case.w, cols);
        let mut x = case.x.clone();
        x[GROUP + 7] = 1e6;
        let spoilt = case.multiply(&mut backend, &w, &x);
        assert_eq!(bits(&plain), bits(&spoilt), "{format:?}");
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let (cols, rows) = (2 * GROUP, 33);
    let mut case = Case::new(2, cols, rows);
    case.w[5 * cols + 3] = f32::INFINITY;
    case.x[cols + 200] = f32::NAN;
    for format in FORMATS {
        for isa in Isa::available() {
            let out = case.run(&mut backend(isa, Dtype::Bfloat16, 1), format);
            for (j, value) in out[..rows].iter().enumerate() {
                assert_eq!(value.is_finite(), j != 5, "{isa} {format:?} {j}");
            }
            assert!(out[rows..].iter().all(|value| value.is_nan()));
        }
    }
}

#[test]
fn weights_load_from_any_type_and_layout() {
    let (rows, cols, pad) = (75, 145, 3);
    let value = |row: usize, col: usize| ((row * 31 + col * 7) % 129) as f32 / 64.0 - 1.0;
    let plain: Vec<f32> = (0..rows * cols)
        .map(|i| value(i / cols, i % cols))
        .collect();
    for format in FORMATS {
        let expected = read_back(format, &plain, cols);
        for disk in [
            CheckpointDtype::F32,
            CheckpointDtype::Bf16,
            CheckpointDtype::F16,
        ] {
            let mut bytes = vec![0xffu8];
            for i in 0..rows * (cols + pad) {
                let x = value(i / (cols + pad), i % (cols + pad));
                match disk {
                    CheckpointDtype::F32 => bytes.extend(x.to_le_bytes()),
                    CheckpointDtype::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                    CheckpointDtype::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                }
            }
            let stride = (cols + pad) * disk.bytes();
            let block = |from: usize, to: usize| HostBlock {
                bytes: &bytes,
                offset: 1 + from * stride,
                stride,
                rows: to - from,
            };
            let host = HostMatrix::Floats(HostFloats {
                cols,
                dtype: disk,
                blocks: vec![block(0, 20), block(20, 20), block(20, 61), block(61, rows)],
            });
            for isa in Isa::available() {
                let mut backend = backend(isa, Dtype::Bfloat16, 2);
                let w = backend.load_matrix(&host, format).unwrap();
                let back = dequantized(&mut backend, &w, rows, cols);
                assert_eq!(bits(&back), bits(&expected), "{isa} {format:?} {disk:?}");
            }
        }
    }
}

#[test]
fn a_weight_takes_hardly_more_than_its_bits() {
    let values = vec![1.0; 64 * 1_024];
    let bits_of = |format| {
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
        let bytes: Vec<u8> = values.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        let block = HostBlock {
            bytes: &bytes,
            offset: 0,
            stride: 4 * 1_024,
            rows: 64,
        };
        let host = HostMatrix::Floats(HostFloats {
            cols: 1_024,
            dtype: CheckpointDtype::F32,
            blocks: vec![block],
        });
        let w = backend.load_matrix(&host, format).unwrap();
        backend.matrix_bytes(&w) as f64 * 8.0 / values.len() as f64
    };
    assert_eq!(bits_of(WeightFormat::Int8), 8.125);
    assert_eq!(bits_of(WeightFormat::Int4), 4.25);
}

#[test]
fn the_description_names_the_weights() {
    let text = |format| backend(Isa::Scalar, Dtype::Bfloat16, 1).describe(format);
    let expected = "cpu scalar, bf16, int8 weights, 1 threads";
    assert_eq!(text(WeightFormat::Int8), expected);
    assert_eq!(text(WeightFormat::Int4), expected.replace("int8", "int4"));
}

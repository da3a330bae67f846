//! Matrix products.

use half::{bf16, f16};
use lockstep_backend::{
    CheckpointDtype, Holds, HostBlock, HostFloats, HostMatrix, Linear, Memory as _, Ops as _,
    WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, Isa};
use lockstep_types::Dtype;
use proptest::prelude::*;

use crate::machine::{Values, backend, bits, matrix, rounded, runs_amx, tensor, variants};

struct Case {
    n: usize,
    cols: usize,
    rows: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new(n: usize, cols: usize, rows: usize, with_bias: bool) -> Self {
        let mut values = Values::new((n * 1_000_003 + cols * 1_009 + rows) as u64);
        let x = values.floats(n * cols);
        let w = values.floats(rows * cols);
        let bias = with_bias.then(|| values.floats(rows));
        Self {
            n,
            cols,
            rows,
            x,
            w,
            bias,
        }
    }

    fn run(&self, backend: &mut CpuBackend) -> Vec<f32> {
        let w = matrix(backend, &self.w, self.cols);
        let x = tensor(backend, &self.x, self.cols);
        let bias = self
            .bias
            .as_ref()
            .map(|bias| backend.load_vector(bias).unwrap());
        let mut out = backend.tensor(self.n, self.rows, Holds::Sum).unwrap();
        out.values_mut().fill(f32::NAN);
        let w = Linear {
            weight: &w,
            bias: bias.as_ref(),
        };
        backend.matmul(&x, w, &mut out);
        out.values().to_vec()
    }

    /// Multiplies rows one at a time.
    fn run_alone(&self, backend: &mut CpuBackend) -> Vec<f32> {
        let w = matrix(backend, &self.w, self.cols);
        let bias = self
            .bias
            .as_ref()
            .map(|bias| backend.load_vector(bias).unwrap());
        let mut out = backend.tensor(1, self.rows, Holds::Sum).unwrap();
        let w = Linear {
            weight: &w,
            bias: bias.as_ref(),
        };
        let mut all = Vec::new();
        for row in self.x.chunks_exact(self.cols) {
            let x = tensor(backend, row, self.cols);
            backend.matmul(&x, w, &mut out);
            all.extend_from_slice(out.values());
        }
        all
    }

    fn check(&self, out: &[f32], dtype: Dtype) {
        for i in 0..self.n {
            for j in 0..self.rows {
                let (mut sum, mut size) = (0.0f64, 0.0f64);
                for k in 0..self.cols {
                    let product = rounded(self.x[i * self.cols + k], dtype)
                        * rounded(self.w[j * self.cols + k], dtype);
                    sum += product;
                    size += product.abs();
                }
                if let Some(bias) = &self.bias {
                    sum += f64::from(bias[j]);
                    size += f64::from(bias[j].abs());
                }
                let limit = size * (self.cols + 2) as f64 * f64::from(f32::EPSILON);
                let got = f64::from(out[i * self.rows + j]);
                assert!(
                    (got - sum).abs() <= limit,
                    "[{i}, {j}]: {got} instead of {sum}"
                );
            }
        }
    }
}

/// Shapes `(rows, inputs, outputs)`. The last three have more inputs than a kernel goes
/// through at once. The first of these also has more rows than pass by together.
const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 1),
    (1, 7, 33),
    (2, 64, 96),
    (5, 31, 130),
    (12, 40, 300),
    (13, 65, 64),
    (25, 100, 31),
    (37, 600, 40),
    (301, 2_081, 33),
    (33, 2_081, 40),
    (37, 4_300, 65),
];

#[test]
fn products_are_those_of_plain_arithmetic() {
    for (isa, dtype) in variants() {
        for threads in [1, 2] {
            let mut backend = backend(isa, dtype, threads);
            for (n, cols, rows) in SHAPES {
                let case = Case::new(n, cols, rows, n % 2 == 1);
                case.check(&case.run(&mut backend), dtype);
            }
        }
    }
}

#[test]
fn instruction_sets_with_the_same_rounding_give_the_same_bits() {
    let runs_amx = runs_amx();
    for (n, cols, rows) in SHAPES {
        let case = Case::new(n, cols, rows, false);
        let run = |isa, dtype| bits(&case.run(&mut backend(isa, dtype, 1)));
        let exact = [Isa::Avx2, Isa::Avx512, Isa::Neon];
        let here: Vec<Isa> = exact.into_iter().filter(|isa| isa.is_available()).collect();
        for &isa in &here {
            assert_eq!(run(isa, Dtype::Float32), run(here[0], Dtype::Float32));
            assert_eq!(run(isa, Dtype::Bfloat16), run(Isa::Scalar, Dtype::Bfloat16));
        }
        if runs_amx {
            for dtype in [Dtype::Bfloat16, Dtype::Float32] {
                assert_eq!(run(Isa::Amx, dtype), run(Isa::AmxEmulated, dtype));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_row_does_not_depend_on_its_batch(
        n in 1usize..60,
        cols in 1usize..700,
        rows in 1usize..200,
        threads in 1usize..4,
        with_bias: bool,
    ) {
        let case = Case::new(n, cols, rows, with_bias);
        for (isa, dtype) in variants() {
            let together = case.run(&mut backend(isa, dtype, threads));
            let alone = case.run_alone(&mut backend(isa, dtype, 1));
            prop_assert_eq!(bits(&together), bits(&alone), "{} {:?}", isa, dtype);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_a_large_batch() {
    // Without a bias, and in whole blocks of inputs, sums of many rows are kept aside. Sums
    // of long inputs are kept between slices too.
    for (n, cols, rows, with_bias) in [
        (517, 1_037, 101, true),
        (34, 4_300, 33, true),
        (517, 96, 80, false),
        (260, 4_160, 48, false),
        (260, 2_112, 400, false),
    ] {
        let case = Case::new(n, cols, rows, with_bias);
        for (isa, dtype) in variants() {
            let together = case.run(&mut backend(isa, dtype, 3));
            let alone = case.run_alone(&mut backend(isa, dtype, 1));
            assert_eq!(bits(&together), bits(&alone), "{isa} {dtype:?} {n}");
        }
    }
}

#[test]
fn no_rows_are_fine() {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
    let case = Case::new(0, 16, 32, true);
    assert!(case.run(&mut backend).is_empty());
}

/// Values that every type holds exactly, in every type, cut into strided blocks.
#[test]
fn weights_load_from_any_type_and_layout() {
    let (rows, cols, pad) = (75, 45, 3);
    let value = |row: usize, col: usize| ((row * 31 + col * 7) % 129) as f32 / 64.0 - 1.0;
    let plain: Vec<f32> = (0..rows * cols)
        .map(|i| value(i / cols, i % cols))
        .collect();
    let x = Values::new(3).floats(4 * cols);
    for (isa, dtype) in variants() {
        let mut backend = backend(isa, dtype, 2);
        let input = tensor(&mut backend, &x, cols);
        let mut expected = backend.tensor(4, rows, Holds::Sum).unwrap();
        let loaded = matrix(&mut backend, &plain, cols);
        backend.matmul(&input, Linear::unbiased(&loaded), &mut expected);
        for disk in [
            CheckpointDtype::F32,
            CheckpointDtype::Bf16,
            CheckpointDtype::F16,
        ] {
            let mut bytes = vec![0xffu8];
            for row in 0..rows {
                for col in 0..cols + pad {
                    let x = value(row, col);
                    match disk {
                        CheckpointDtype::F32 => bytes.extend(x.to_le_bytes()),
                        CheckpointDtype::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                        CheckpointDtype::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                    }
                }
            }
            let stride = (cols + pad) * disk.bytes();
            let block = |from: usize, to: usize| HostBlock {
                bytes: &bytes,
                offset: 1 + from * stride,
                stride,
                rows: to - from,
            };
            let blocks = vec![block(0, 20), block(20, 20), block(20, 61), block(61, rows)];
            let host = HostMatrix::Floats(HostFloats {
                cols,
                dtype: disk,
                blocks,
            });
            let w = backend.load_matrix(&host, WeightFormat::Float).unwrap();
            let mut out = backend.tensor(4, rows, Holds::Sum).unwrap();
            backend.matmul(&input, Linear::unbiased(&w), &mut out);
            assert_eq!(
                bits(out.values()),
                bits(expected.values()),
                "{isa} {disk:?}"
            );
        }
    }
}

#[test]
fn a_matrix_that_is_cut_off_is_refused() {
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let block = HostBlock {
        bytes: &[0; 63],
        offset: 0,
        stride: 16,
        rows: 4,
    };
    let host = HostMatrix::Floats(HostFloats {
        cols: 8,
        dtype: CheckpointDtype::Bf16,
        blocks: vec![block],
    });
    let error = backend
        .load_matrix(&host, WeightFormat::Float)
        .err()
        .unwrap();
    assert!(error.to_string().contains("row 3"), "{error}");
}

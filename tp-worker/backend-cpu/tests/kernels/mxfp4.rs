//! Products with 4-bit floats of a checkpoint.

use lockstep_backend::{
    E2m1, E8m0, Holds, HostBlock, HostMatrix, HostMxfp4, Linear, Memory as _, Ops as _,
    WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuMatrix, Isa};
use lockstep_types::Dtype;

use crate::machine::{Values, backend, bits, matrix_in, tensor, tokens as staged_tokens};
use crate::pairs::{bf16_matrix, in_bf16, split};

/// A tensor of 4-bit floats, in whole groups.
struct Stored {
    groups: usize,
    codes: Vec<u8>,
    exponents: Vec<u8>,
}

impl Stored {
    fn new(rows: usize, groups: usize) -> Self {
        let mut values = Values::new((rows * 1_009 + groups) as u64);
        let mut bytes = |count: usize, most: usize, first: u8| -> Vec<u8> {
            (0..count)
                .map(|_| first + values.below(most) as u8)
                .collect()
        };
        Self {
            groups,
            codes: bytes(rows * groups * 16, 256, 0),
            exponents: bytes(rows * groups, 12, 118),
        }
    }

    fn value(&self, row: usize, col: usize) -> f32 {
        let code = self.codes[row * self.groups * 16 + col / 2] >> (4 * (col % 2));
        E2m1(code).value() * E8m0(self.exponents[row * self.groups + col / 32]).value()
    }

    /// Columns from `first` to `end` of every second row from `from` on, and then of the others.
    fn part(&self, first: usize, end: usize) -> HostMatrix<'_> {
        let blocks = |bytes, width: usize| -> Vec<HostBlock<'_>> {
            let rows = self.exponents.len() / self.groups;
            let block = |from: usize| HostBlock {
                bytes,
                offset: (from * self.groups + first / 32) * width,
                stride: 2 * self.groups * width,
                rows: (rows - from).div_ceil(2),
            };
            [0, 1].map(block).to_vec()
        };
        HostMatrix::Mxfp4(HostMxfp4 {
            cols: end - first,
            skipped: first % 32,
            blocks: blocks(&self.codes, 16),
            exponents: blocks(&self.exponents, 1),
        })
    }

    /// The values of [`Self::part`], row by row.
    fn values(&self, first: usize, end: usize) -> Vec<f32> {
        let rows = self.exponents.len() / self.groups;
        let order = (0..rows).step_by(2).chain((1..rows).step_by(2));
        order
            .flat_map(|row| (first..end).map(move |col| self.value(row, col)))
            .collect()
    }
}

fn multiply(
    backend: &mut CpuBackend,
    w: &CpuMatrix,
    rows: usize,
    x: &[f32],
    cols: usize,
    bias: &[f32],
) -> Vec<f32> {
    let x = tensor(backend, x, cols);
    let bias = backend.load_vector(bias).unwrap();
    let mut out = backend.tensor(x.rows(), rows, Holds::Sum).unwrap();
    out.values_mut().fill(f32::NAN);
    let w = Linear {
        weight: w,
        bias: Some(&bias),
    };
    backend.matmul(&x, w, &mut out);
    out.values().to_vec()
}

/// Rows and groups of tensors, and the columns of parts of them.
const PARTS: [(usize, usize, usize, usize); 6] = [
    (33, 1, 0, 32),
    (70, 9, 0, 288),
    (70, 9, 64, 270),
    (40, 17, 160, 515),
    (64, 4, 0, 128),
    (31, 70, 0, 2_200),
];

/// Products are one chain of fused multiply-adds over the dequantised weights, in the order of
/// inputs, on every instruction set. Many rows read weights that were widened before. Where bf16
/// weights are multiplied in that order too, a copy of the weights in bf16 gives the same bits.
/// With `vdpbf16ps` a copy gives them whose inputs stand in the order of pairs.
#[test]
fn products_are_those_of_the_dequantised_weights_bit_by_bit() {
    for (turn, (rows, groups, first, end)) in PARTS.into_iter().enumerate() {
        let stored = Stored::new(rows, groups);
        let (host, cols) = (stored.part(first, end), end - first);
        let values = stored.values(first, end);
        let copy = in_bf16(&values);
        let copy = bf16_matrix(&copy, rows, cols);
        let wide = cols.next_multiple_of(8);
        let paired = in_bf16(&split(&values, cols));
        let paired = bf16_matrix(&paired, rows, wide);
        let bias = Values::new(7).floats(rows);
        for dtype in [Dtype::Bfloat16, Dtype::Float32] {
            for n in [1, 2, 3, 5, 12, 13, 40, 61] {
                let x = Values::new((n * 31 + turn) as u64).floats(n * cols);
                let round = |x: f32| match dtype {
                    Dtype::Float32 => x,
                    Dtype::Bfloat16 => half::bf16::from_f32(x).to_f32(),
                };
                let mut expected = Vec::new();
                for x in x.chunks_exact(cols) {
                    for (row, bias) in values.chunks_exact(cols).zip(&bias) {
                        let products = x.iter().zip(row);
                        let sum = products.fold(0.0f32, |sum, (x, w)| round(*x).mul_add(*w, sum));
                        expected.push(sum + bias);
                    }
                }
                for isa in Isa::available() {
                    let mut backend = backend(isa, dtype, 1 + n % 2);
                    let w = backend.load_matrix(&host, WeightFormat::Mxfp4).unwrap();
                    let found = multiply(&mut backend, &w, rows, &x, cols, &bias);
                    let what = format!("{isa} {dtype:?} part {turn}, {n} rows");
                    if isa == Isa::Avx512Bf16 && dtype == Dtype::Bfloat16 {
                        let w = backend.load_matrix(&paired, WeightFormat::Float).unwrap();
                        let x = split(&x, cols);
                        let expected = multiply(&mut backend, &w, rows, &x, wide, &bias);
                        assert_eq!(bits(&found), bits(&expected), "{what}");
                        continue;
                    }
                    assert_eq!(bits(&found), bits(&expected), "{what}");
                    let in_order = matches!(isa, Isa::Scalar | Isa::Avx2 | Isa::Avx512);
                    if in_order && dtype == Dtype::Bfloat16 {
                        let w = backend.load_matrix(&copy, WeightFormat::Float).unwrap();
                        let found = multiply(&mut backend, &w, rows, &x, cols, &bias);
                        assert_eq!(bits(&found), bits(&expected), "{what}, bf16");
                    }
                }
            }
        }
    }
}

/// The weights that a matrix represents.
fn read_back(backend: &mut CpuBackend, w: &CpuMatrix, [rows, cols]: [usize; 2]) -> Vec<f32> {
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let mut out = backend.tensor(rows, cols, Holds::Sum).unwrap();
    let inputs = staged_tokens(backend, &tokens);
    backend.embed(w, 0, 1.0, &inputs, &mut out);
    out.values().to_vec()
}

/// Packed as floats of either type they are the same values, also from the middle of a group on.
#[test]
fn weights_come_back_as_the_checkpoint_has_them() {
    let parts = PARTS.into_iter().chain([(40, 5, 37, 150)]);
    for (rows, groups, first, end) in parts {
        let stored = Stored::new(rows, groups);
        let (host, expected) = (stored.part(first, end), stored.values(first, end));
        let whole = first.is_multiple_of(32);
        for (dtype, format) in [
            (Dtype::Bfloat16, WeightFormat::Mxfp4),
            (Dtype::Bfloat16, WeightFormat::Float),
            (Dtype::Float32, WeightFormat::Float),
        ] {
            if !whole && format == WeightFormat::Mxfp4 {
                continue;
            }
            let mut backend = backend(Isa::detect(), dtype, 2);
            let w = backend.load_matrix(&host, format).unwrap();
            let found = read_back(&mut backend, &w, [rows, end - first]);
            assert_eq!(
                bits(&found),
                bits(&expected),
                "{format:?} {rows} from {first}"
            );
        }
    }
}

/// An exponent that is no number shows in all sums of its column, and in no other.
#[test]
fn what_is_no_number_is_not_hidden() {
    let mut stored = Stored::new(40, 5);
    stored.exponents[17 * 5 + 4] = 255;
    // The rows 1, 3, 5 and so on come behind the 20 even ones.
    let odd = 20 + 8;
    let host = stored.part(0, 150);
    for isa in Isa::available() {
        for n in [1, 50] {
            let mut backend = backend(isa, Dtype::Bfloat16, 1);
            let w = backend.load_matrix(&host, WeightFormat::Mxfp4).unwrap();
            let x = vec![1.0; n * 150];
            let found = multiply(&mut backend, &w, 40, &x, 150, &[0.0; 40]);
            for (at, value) in found.iter().enumerate() {
                assert_eq!(value.is_nan(), at % 40 == odd, "{isa} {at}");
            }
        }
    }
}

/// Values of other forms are rounded to the nearest, with the largest of 32 between 4 and 8
/// times the power of two. That is how random weights of such a model are made.
#[test]
fn other_values_are_rounded_to_the_nearest() {
    let (rows, cols) = (40, 300);
    let values = Values::new(3).floats(rows * cols);
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let w = matrix_in(&mut backend, WeightFormat::Mxfp4, &values, cols);
    let found = read_back(&mut backend, &w, [rows, cols]);
    for (row, found) in values.chunks(cols).zip(found.chunks(cols)) {
        for (group, found) in row.chunks(32).zip(found.chunks(32)) {
            let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (value, found) in group.iter().zip(found) {
                // Numbers are as far as 2 apart from 4 on, and 6 is the largest of up to 8.
                let most = largest / 4.0 * 1.0001;
                assert!((value - found).abs() <= most, "{value} {found}");
            }
        }
    }
}

#[test]
fn a_weight_takes_half_a_byte_and_its_share_of_an_exponent() {
    let mut one = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let values = vec![1.0; 64 * 1_024];
    let w = matrix_in(&mut one, WeightFormat::Mxfp4, &values, 1_024);
    assert_eq!(
        one.matrix_bytes(&w) as f64 * 8.0 / values.len() as f64,
        4.25
    );
    let about = backend(Isa::Scalar, Dtype::Bfloat16, 1).describe(WeightFormat::Mxfp4);
    assert_eq!(about, "cpu scalar, bf16, mxfp4 weights, 1 threads");
}

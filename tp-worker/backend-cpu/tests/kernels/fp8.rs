//! Products with 8-bit floats of a checkpoint.

use std::sync::Arc;

use lockstep_backend::{
    E4m3, Holds, HostBlock, HostFp8, HostMatrix, Linear, Memory as _, Ops as _, ScaleGrid,
    ScalePart, WeightFormat,
};
use lockstep_backend_cpu::{CpuBackend, CpuMatrix, Isa};
use lockstep_types::{Dtype, Fp8Checkpoint};

use crate::machine::{Values, backend, bits, matrix_in, tensor, tokens as staged_tokens};
use crate::pairs::{bf16_matrix, in_bf16, split};

/// A tensor of 8-bit floats, with a scale for every block.
struct Stored {
    cols: usize,
    codes: Vec<u8>,
    grid: Arc<ScaleGrid>,
}

impl Stored {
    fn new([rows, cols]: [usize; 2], [high, wide]: [usize; 2]) -> Self {
        let mut values = Values::new((rows * 1_009 + cols * 31 + wide) as u64);
        let codes = values.floats(rows * cols).into_iter();
        let stride = cols.div_ceil(wide);
        let scales = values.floats(rows.div_ceil(high) * stride).into_iter();
        Self {
            cols,
            codes: codes.map(|x| E4m3::nearest(x * 400.0).0).collect(),
            grid: Arc::new(ScaleGrid {
                tensor: String::new(),
                values: scales.map(|x| (x.abs() + 0.1) / 300.0).collect(),
                stride,
                rows: high,
                cols: wide,
            }),
        }
    }

    fn value(&self, row: usize, col: usize) -> f32 {
        let grid = &self.grid;
        let scale = grid.values[row / grid.rows * grid.stride + col / grid.cols];
        E4m3(self.codes[row * self.cols + col]).value() * scale
    }

    /// Columns from `first` on of these rows.
    fn part(&self, rows: &[std::ops::Range<usize>], first: usize) -> HostMatrix<'_> {
        let block = |rows: &std::ops::Range<usize>| HostBlock {
            bytes: &self.codes,
            offset: rows.start * self.cols + first,
            stride: self.cols,
            rows: rows.len(),
        };
        let scales = |rows: &std::ops::Range<usize>| ScalePart {
            whole: Arc::clone(&self.grid),
            row: rows.start,
            col: first,
            step: 1,
        };
        HostMatrix::Fp8(HostFp8 {
            cols: self.cols - first,
            blocks: rows.iter().map(block).collect(),
            scales: rows.iter().map(scales).collect(),
        })
    }

    /// Inputs that share a scale in a part that begins at a column.
    fn group(&self, first: usize) -> usize {
        let checkpoint = Fp8Checkpoint {
            block: Some([self.grid.rows, self.grid.cols]),
            mixed: false,
            floats: Vec::new(),
        };
        checkpoint.group(first).unwrap()
    }

    /// The format of a part that begins at a column.
    fn format(&self, first: usize) -> WeightFormat {
        let group = self.group(first);
        WeightFormat::Fp8 { group }
    }

    /// Products of the rows `taken`, from column `first` on: the inputs under one scale are
    /// multiplied by a copy of their codes in bf16, and the sums by the scale as they are added.
    fn in_pairs(
        &self,
        backend: &mut CpuBackend,
        taken: &[usize],
        first: usize,
        x: &[f32],
        bias: &[f32],
    ) -> Vec<f32> {
        let (cols, group, zeros) = (self.cols - first, self.group(first), vec![0.0; taken.len()]);
        let mut totals = vec![0.0f32; x.len() / cols * taken.len()];
        for start in (0..cols).step_by(group) {
            let (from, count) = (first + start, group.min(cols - start));
            let codes = |row: &usize| &self.codes[row * self.cols + from..][..count];
            let codes = taken.iter().flat_map(codes);
            let codes: Vec<f32> = codes.map(|code| E4m3(*code).value()).collect();
            let parts = x.chunks_exact(cols);
            let inputs: Vec<f32> = parts.flat_map(|x| x[start..][..count].to_vec()).collect();
            let wide = count.next_multiple_of(8);
            let copy = in_bf16(&split(&codes, count));
            let copy = bf16_matrix(&copy, taken.len(), wide);
            let w = backend.load_matrix(&copy, WeightFormat::Float).unwrap();
            let inputs = split(&inputs, count);
            let sums = multiply(backend, &w, taken.len(), &inputs, wide, &zeros);
            let scales = taken.iter().cycle().map(|row| {
                let grid = &self.grid;
                grid.values[row / grid.rows * grid.stride + from / grid.cols]
            });
            for ((total, sum), scale) in totals.iter_mut().zip(sums).zip(scales) {
                *total = sum.mul_add(scale, *total);
            }
        }
        let biases = bias.iter().cycle();
        totals
            .iter()
            .zip(biases)
            .map(|(total, bias)| total + bias)
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

/// Rows of a part, blocks of scales, and the column that the part begins at.
type Part = ([usize; 2], [usize; 2], usize);

/// Whole rows and parts, whose scales change after 128, 64, 32, 16, 8 and 4 inputs.
const PARTS: [Part; 9] = [
    ([33, 1], [128, 128], 0),
    ([70, 300], [128, 128], 0),
    ([70, 300], [128, 128], 64),
    ([40, 515], [32, 128], 160),
    ([65, 272], [128, 128], 48),
    ([64, 200], [16, 128], 56),
    ([96, 133], [128, 128], 4),
    ([50, 260], [1, 64], 0),
    ([31, 2_200], [7, 256], 0),
];

/// Products are one chain of fused multiply-adds over the dequantised weights, in the order of
/// inputs, on every instruction set. Many rows read weights that were widened before. With
/// `vdpbf16ps`, the sums of the inputs under one scale are those of a copy of the codes in bf16.
#[test]
fn products_are_those_of_the_dequantised_weights_bit_by_bit() {
    for (turn, (shape, block, first)) in PARTS.into_iter().enumerate() {
        let stored = Stored::new(shape, block);
        let [rows, cols] = [shape[0], shape[1] - first];
        let middle = rows / 3;
        let order = [middle..rows, 0..middle];
        let host = stored.part(&order, first);
        let taken: Vec<usize> = order.iter().cloned().flatten().collect();
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
                    for (row, bias) in taken.iter().zip(&bias) {
                        let sum = x.iter().enumerate().fold(0.0f32, |sum, (col, x)| {
                            round(*x).mul_add(stored.value(*row, first + col), sum)
                        });
                        expected.push(sum + bias);
                    }
                }
                for isa in Isa::available() {
                    let mut backend = backend(isa, dtype, 1 + n % 2);
                    let w = backend.load_matrix(&host, stored.format(first)).unwrap();
                    let found = multiply(&mut backend, &w, rows, &x, cols, &bias);
                    let what = format!("{isa} {dtype:?} {shape:?} from {first}, {n} rows");
                    if isa == Isa::Avx512Bf16 && dtype == Dtype::Bfloat16 && stored.group(first) > 4
                    {
                        let expected = stored.in_pairs(&mut backend, &taken, first, &x, &bias);
                        assert_eq!(bits(&found), bits(&expected), "{what}");
                        continue;
                    }
                    assert_eq!(bits(&found), bits(&expected), "{what}");
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

#[test]
fn weights_come_back_as_the_checkpoint_has_them() {
    for (shape, block, first) in PARTS {
        let stored = Stored::new(shape, block);
        let [rows, cols] = [shape[0], shape[1] - first];
        let host = stored.part(std::slice::from_ref(&(0..rows)), first);
        let expected: Vec<f32> = (0..rows * cols)
            .map(|at| stored.value(at / cols, first + at % cols))
            .collect();
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 2);
        let w = backend.load_matrix(&host, stored.format(first)).unwrap();
        let found = read_back(&mut backend, &w, [rows, cols]);
        assert_eq!(bits(&found), bits(&expected), "{shape:?} from {first}");
        // Packed as floats they are the same values.
        let mut backend = crate::machine::backend(Isa::detect(), Dtype::Float32, 2);
        let w = backend.load_matrix(&host, WeightFormat::Float).unwrap();
        let found = read_back(&mut backend, &w, [rows, cols]);
        assert_eq!(bits(&found), bits(&expected), "{shape:?} from {first}");
    }
}

/// A code that is no number shows in all sums of its column, and in no other.
#[test]
fn what_is_no_number_is_not_hidden() {
    let mut stored = Stored::new([40, 150], [128, 128]);
    stored.codes[17 * 150 + 140] = 0xff;
    let host = stored.part(std::slice::from_ref(&(0..40)), 0);
    for isa in Isa::available() {
        for n in [1, 50] {
            let mut backend = backend(isa, Dtype::Bfloat16, 1);
            let w = backend.load_matrix(&host, stored.format(0)).unwrap();
            let x = vec![1.0; n * 150];
            let found = multiply(&mut backend, &w, 40, &x, 150, &[0.0; 40]);
            for (at, value) in found.iter().enumerate() {
                assert_eq!(value.is_nan(), at % 40 == 17, "{isa} {at}");
            }
        }
    }
}

/// Values of other forms are rounded to 8-bit floats, with the largest of 128 at the end of
/// their range. That is how random weights of such a model are made.
#[test]
fn other_values_are_rounded_to_the_nearest() {
    let format = WeightFormat::Fp8 { group: 128 };
    let (rows, cols) = (40, 300);
    let values = Values::new(3).floats(rows * cols);
    let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
    let w = matrix_in(&mut backend, format, &values, cols);
    let found = read_back(&mut backend, &w, [rows, cols]);
    for (row, found) in values.chunks(cols).zip(found.chunks(cols)) {
        for (group, found) in row.chunks(128).zip(found.chunks(128)) {
            let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (value, found) in group.iter().zip(found) {
                // Half of the last of three bits, or of the smallest step.
                let most = (value.abs() / 16.0).max(largest / 448.0 / 1_024.0) * 1.0001;
                assert!((value - found).abs() <= most, "{value} {found}");
            }
        }
    }
}

#[test]
fn a_weight_takes_a_byte_and_its_share_of_a_scale() {
    let bytes_of = |group| {
        let mut backend = backend(Isa::detect(), Dtype::Bfloat16, 1);
        let values = vec![1.0; 64 * 1_024];
        let w = matrix_in(&mut backend, WeightFormat::Fp8 { group }, &values, 1_024);
        backend.matrix_bytes(&w) as f64 / values.len() as f64
    };
    assert_eq!(bytes_of(128), 1.0 + 4.0 / 128.0);
    assert_eq!(bytes_of(32), 1.0 + 4.0 / 32.0);
    let about = backend(Isa::Scalar, Dtype::Bfloat16, 1).describe(WeightFormat::Fp8 { group: 128 });
    assert_eq!(about, "cpu scalar, bf16, fp8 weights, 1 threads");
}

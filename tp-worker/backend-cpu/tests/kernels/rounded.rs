//! Cases of products with weights that are codes with scales.

use lockstep_backend::{Holds, Linear, Memory as _, Ops as _, WeightFormat};
use lockstep_backend_cpu::{CpuBackend, CpuMatrix};

use crate::machine::{Values, matrix_in, tensor, tokens as staged_tokens};

/// Inputs that share a scale.
pub const GROUP: usize = 128;

/// `n` rows times `[out, in]` weights; one input channel in 50 is larger than the rest.
pub struct Case {
    pub cols: usize,
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Case {
    pub fn new(n: usize, cols: usize, rows: usize) -> Self {
        let mut values = Values::new((n * 1_000_003 + cols * 1_009 + rows) as u64);
        let mut x = values.floats(n * cols);
        for row in x.chunks_exact_mut(cols) {
            row.iter_mut().step_by(50).for_each(|x| *x *= 30.0);
        }
        Self {
            cols,
            x,
            w: values.floats(rows * cols),
            bias: values.floats(rows),
        }
    }

    pub fn rows(&self) -> usize {
        self.bias.len()
    }

    pub fn load(&self, backend: &mut CpuBackend, format: WeightFormat) -> CpuMatrix {
        matrix_in(backend, format, &self.w, self.cols)
    }

    pub fn run(&self, backend: &mut CpuBackend, format: WeightFormat) -> Vec<f32> {
        let w = self.load(backend, format);
        self.multiply(backend, &w, &self.x)
    }

    pub fn multiply(&self, backend: &mut CpuBackend, w: &CpuMatrix, x: &[f32]) -> Vec<f32> {
        let x = tensor(backend, x, self.cols);
        let bias = backend.load_vector(&self.bias).unwrap();
        let mut out = backend.tensor(x.rows(), self.rows(), Holds::Sum).unwrap();
        out.values_mut().fill(f32::NAN);
        let w = Linear {
            weight: w,
            bias: Some(&bias),
        };
        backend.matmul(&x, w, &mut out);
        out.values().to_vec()
    }
}

/// The weights that a matrix represents, `[rows, cols]`.
pub fn dequantized(backend: &mut CpuBackend, w: &CpuMatrix, rows: usize, cols: usize) -> Vec<f32> {
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let mut out = backend.tensor(rows, cols, Holds::Sum).unwrap();
    let inputs = staged_tokens(backend, &tokens);
    backend.embed(w, 0, 1.0, &inputs, &mut out);
    out.values().to_vec()
}

/// A row after the rounding of products: integers up to `most` and a scale for every 128 inputs.
pub fn rounded_inputs(row: &[f32], most: f32) -> Vec<f64> {
    let groups = row.chunks(GROUP).flat_map(|group| {
        let largest = group.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        let (scale, inverse) = (largest / most, most / largest);
        let round = move |x: &f32| (x * inverse).round_ties_even();
        group
            .iter()
            .map(move |x| f64::from(scale) * f64::from(round(x)))
    });
    groups.collect()
}

//! Products that are summed over ranks, fused with the operations that follow the sum, and the
//! experts of a mixture.

use lockstep_backend::{
    Axis, BackendError, BlockEnd, ExpertSpace, Experts, Linear, Norm, RmsNorm, RowParallel, Scatter,
};

use super::CpuBackend;
use crate::experts::{self, Activations, Space};
use crate::formats::CpuMatrix;
use crate::gemm::matmul;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::norm::{AddNorm, Ends, Next};
use crate::pool::Pool;
use crate::tensor::{CpuTensor, CpuVector};

impl CpuBackend {
    /// See [`lockstep_backend::Exchange::matmul_end_block`].
    pub(super) fn fused_sum(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        residual: &mut CpuTensor,
        delta: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let RowParallel { axis, part: w } = w;
        let norm = checked(w.weight.rows, x.rows(), residual, end, out);
        delta.expect(x.rows(), norm.width, "the product's space");
        let (isa, packed) = (self.isa, &mut self.packed);
        let product = |pool: &mut Pool, out: &mut [f32]| multiply(pool, isa, x, w, packed, out);
        let (pool, delta) = (&mut self.pool, delta.values_mut());
        self.collectives
            .sum_end_block(axis, pool, isa, product, delta, norm)
    }

    /// See [`lockstep_backend::Exchange::matmul_scatter_end_block`].
    pub(super) fn fused_scatter(
        &mut self,
        x: &CpuTensor,
        w: RowParallel<'_, CpuMatrix, CpuVector>,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let RowParallel { axis, part: w } = w;
        let (rank, size) = self.collectives.rank_and_size(axis);
        let Scatter { rows, product } = scatter;
        assert!(rows.len() == size, "one range of rows per rank");
        let norm = checked(w.weight.rows, rows[rank].len(), residual, end, out);
        product.expect(x.rows(), norm.width, "the product's space");
        let (isa, packed) = (self.isa, &mut self.packed);
        let multiply = |pool: &mut Pool, out: &mut [f32]| multiply(pool, isa, x, w, packed, out);
        let (pool, product) = (&mut self.pool, product.values_mut());
        self.collectives
            .scatter_end_block(axis, pool, isa, multiply, product, rows, norm)
    }

    /// See [`lockstep_backend::Exchange::scatter_end_block`].
    pub(super) fn scatter_sum(
        &mut self,
        axis: Axis,
        scatter: Scatter<'_, CpuTensor>,
        residual: &mut CpuTensor,
        end: BlockEnd<'_, CpuVector>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let (rank, size) = self.collectives.rank_and_size(axis);
        let Scatter { rows, product } = scatter;
        assert!(rows.len() == size, "one range of rows per rank");
        let norm = checked(product.width(), rows[rank].len(), residual, end, out);
        let (pool, product) = (&mut self.pool, product.values_mut());
        self.collectives
            .scatter_product(axis, pool, self.isa, product, rows, norm)
    }

    /// See [`lockstep_backend::Ops::experts`].
    pub(super) fn mix_experts(
        &mut self,
        x: &CpuTensor,
        scores: &mut CpuTensor,
        w: Experts<'_, CpuMatrix, CpuVector>,
        space: ExpertSpace<'_, CpuTensor>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let ExpertSpace {
            gate_up,
            activated,
            products,
        } = space;
        let (rows, choices, count) = (x.rows(), x.rows() * w.taken(), w.gate_up.len());
        assert!(
            w.active <= w.scored && w.first + w.held() <= w.scored && w.down.len() == count,
            "a row goes through experts that there are, and each has both matrices"
        );
        let [inputs, columns, outputs] = match (w.gate_up.first(), w.down.first()) {
            (Some(first), Some(down)) => [first.cols, down.cols, down.rows],
            _ => [0; 3],
        };
        let alike = |matrices: &[CpuMatrix], rows, cols| {
            let shape = |matrix: &CpuMatrix| (matrix.rows, matrix.cols) == (rows, cols);
            matrices.iter().all(shape)
        };
        let before = w.gate.projections() * columns;
        assert!(
            alike(w.gate_up, before, inputs) && alike(w.down, outputs, columns),
            "all experts have one shape"
        );
        x.expect(rows, inputs, "the experts' input");
        scores.expect(rows, w.scored, "the scores of experts");
        for values in [w.correction, w.scales].into_iter().flatten() {
            assert_eq!(values.0.len(), w.scored, "each expert has one");
        }
        let biased = |biases: Option<&CpuVector>, rows| {
            biases.is_none_or(|biases| biases.0.len() == count * rows)
        };
        assert!(
            biased(w.gate_up_bias, before) && biased(w.down_bias, outputs),
            "biases of experts have one value per output"
        );
        gate_up.expect(choices, before, "gate and up of experts");
        activated.expect(choices, columns, "the activations of experts");
        products.expect(choices, outputs, "the experts' products");
        out.expect(rows, outputs, "the experts' output");
        let activations = Activations {
            scores: scores.values_mut(),
            gate_up: gate_up.values_mut(),
            activated: activated.values_mut(),
            products: products.values_mut(),
        };
        let space = Space {
            packed: &mut self.packed,
            routing: &mut self.routing,
        };
        let (pool, out) = (&mut self.pool, out.values_mut());
        experts::run(pool, self.isa, x.values(), w, activations, space, out)
    }
}

/// Checks the shapes of `rows` rows, and returns the tensors of the end of a block whose output
/// has `width` columns.
pub(super) fn checked<'a>(
    width: usize,
    rows: usize,
    residual: &'a mut CpuTensor,
    end: BlockEnd<'a, CpuVector>,
    out: &'a mut CpuTensor,
) -> AddNorm<'a> {
    let alike = |vector: &CpuVector| {
        assert!(vector.0.len() == width, "a norm is as wide as the residual");
    };
    residual.expect(rows, width, "the residual");
    out.expect(rows, width, "the norm's output");
    let weights = |norm: RmsNorm<'a, CpuVector>| {
        alike(norm.weight);
        (norm.weight.0.as_slice(), norm.eps)
    };
    let ends = Ends {
        output: end.output.map(weights),
        next: match end.next {
            None => Next::Copy,
            Some(Norm::Rms(norm)) => {
                let (weight, eps) = weights(norm);
                Next::Rms(weight, eps)
            }
            Some(Norm::Layer { norm, bias }) => {
                alike(bias);
                let (weight, eps) = weights(norm);
                Next::Layer(weight, &bias.0, eps)
            }
        },
    };
    AddNorm {
        residual: residual.values_mut(),
        width,
        ends,
        out: out.values_mut(),
    }
}

/// Computes `out = x · wᵀ + bias`, after a check of the shapes.
pub(super) fn multiply(
    pool: &mut Pool,
    isa: Isa,
    x: &CpuTensor,
    w: Linear<'_, CpuMatrix, CpuVector>,
    packed: &mut Buffer<u32>,
    out: &mut [f32],
) {
    x.expect(x.rows(), w.weight.cols, "the matrix product's input");
    let bias = w.bias.map(|bias| bias.0.as_slice());
    assert!(
        bias.is_none_or(|bias| bias.len() == w.weight.rows),
        "a bias has one value per output"
    );
    matmul(pool, isa, x.values(), w.weight, bias, packed, out)
        .expect("scratch for one batch's activations can be mapped");
}

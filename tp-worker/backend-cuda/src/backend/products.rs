//! Matrix products, and the operations right behind them.

use lockstep_backend::{BlockEnd, Linear};
use lockstep_types::Activation;

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::{Operands, Product};
use crate::runtime::Buffer;
use crate::tensors::{CudaMatrix, CudaTensor, MatrixForm, Rows};

/// A weight matrix with its bias.
type Weights<'a> = Linear<'a, CudaMatrix, Buffer<f32>>;

impl CudaBackend {
    /// See [`lockstep_backend::Ops::matmul`].
    pub(super) fn multiply(
        &mut self,
        x: &CudaTensor,
        w: Weights<'_>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        if w.weight.form == MatrixForm::Router {
            return self.score_experts(x, w, out);
        }
        let operands = operands(x, &w, self.chains.rows(x.rows()), out);
        self.products.run(&self.stream, operands, &mut out.floats)
    }

    /// See [`lockstep_backend::Ops::gated_matmul`].
    pub(super) fn multiply_gated(
        &mut self,
        x: &CudaTensor,
        w: Weights<'_>,
        activation: Activation,
        gate_up: &mut CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (rows, width) = (out.rows(), out.width());
        gate_up.expect(rows, 2 * width, "gate and up");
        let rows = self.chains.rows(rows);
        let operands = operands(x, &w, rows, gate_up);
        let (stream, space, out) = (&self.stream, &mut gate_up.floats, &mut out.floats);
        match self
            .products
            .gated(stream, operands, activation, space, out)?
        {
            Some(sums) => self
                .operations
                .gate(stream, sums, activation, width, rows, out),
            None => Ok(()),
        }
    }

    /// See [`lockstep_backend::Exchange::matmul_end_block`]; for a rank alone.
    pub(super) fn multiply_end_block(
        &mut self,
        x: &CudaTensor,
        w: Weights<'_>,
        residual: &mut CudaTensor,
        delta: &mut CudaTensor,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (rows, width) = (residual.rows(), residual.width());
        delta.expect(rows, width, "the residual's delta");
        out.expect(rows, width, "the norm's output");
        let ends = self.ends(end, width)?;
        let rows = self.chains.rows(rows);
        let operands = operands(x, &w, rows, delta);
        let (stream, space) = (&self.stream, &mut delta.floats);
        let sums = self.products.sums(stream, operands, space)?;
        let (residual, out) = (&mut residual.floats, &mut out.floats);
        ends.run(&self.operations, stream, residual, Some(sums), rows, out)
    }
}

/// Operands of the product of `rows` of `x` with `w`.
///
/// # Panics
/// Unless `x` has exactly the most rows that `rows` allows, and `out` is as large as the
/// product.
pub(super) fn operands<'a>(
    x: &'a CudaTensor,
    w: &Weights<'a>,
    rows: Rows<'a>,
    out: &CudaTensor,
) -> Operands<'a> {
    let weight = w.weight;
    x.expect(rows.most(), weight.cols, "the matrix product's input");
    out.expect(rows.most(), weight.rows, "the matrix product's output");
    Operands {
        x: &x.floats,
        w: weight.floats(),
        bias: w.bias,
        product: Product::of(weight),
        rows,
    }
}

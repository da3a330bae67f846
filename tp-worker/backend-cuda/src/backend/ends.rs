//! Ends of blocks, and other operations that only some families need.

use std::sync::Arc;

use lockstep_backend::{AttentionShape, BlockEnd, CountedKeys, LogitScaling, RmsNorm, WholeNorms};
use lockstep_types::Activation;

use super::CudaBackend;
use crate::error::CudaError;
use crate::ops::{BlockOps, RowwiseOps, Sums};
use crate::runtime::{Buffer, Stream};
use crate::tensors::{CudaTensor, Floats, Rows};

/// An end of a block, with the kernels that run it.
pub(super) enum Ends<'a> {
    /// One RMS norm of the residual stream: the end that most models have.
    Plain(RmsNorm<'a, Buffer<f32>>),
    /// Any other end of so many columns.
    Other(Arc<BlockOps>, BlockEnd<'a, Buffer<f32>>, usize),
}

impl Ends<'_> {
    /// Ends a block: `residual += norm(delta)`, then `out = norm(residual)`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn run(
        &self,
        operations: &RowwiseOps,
        stream: &Stream,
        residual: &mut Floats,
        delta: Option<Sums<'_>>,
        rows: Rows<'_>,
        out: &mut Floats,
    ) -> Result<(), CudaError> {
        match (self, delta) {
            (Self::Plain(RmsNorm { weight, eps }), Some(delta)) => {
                operations.add_rms_norm(stream, residual, delta, weight, *eps, rows, out)
            }
            (Self::Plain(RmsNorm { weight, eps }), None) => {
                operations.rms_norm(stream, residual, weight, *eps, rows, out)
            }
            (Self::Other(blocks, end, width), delta) => {
                blocks.end_block(stream, residual, delta, (*end, *width), rows, out)
            }
        }
    }
}

impl CudaBackend {
    /// Returns the kernels that only some families need. The first call compiles them.
    fn block_ops(&mut self) -> Result<Arc<BlockOps>, CudaError> {
        let made = match &self.blocks {
            Some(made) => made.clone(),
            None => {
                let (context, compiler) = (self.stream.context(), &self.compiler);
                Arc::new(BlockOps::new(context, compiler, self.operand)?)
            }
        };
        Ok(self.blocks.insert(made).clone())
    }

    /// Returns the kernels for `end`, of `width` columns.
    ///
    /// # Errors
    /// The errors of [`BlockOps::new`].
    pub(super) fn ends<'a>(
        &mut self,
        end: BlockEnd<'a, Buffer<f32>>,
        width: usize,
    ) -> Result<Ends<'a>, CudaError> {
        if let Some(norm) = end.plain() {
            assert!(
                norm.weight.len() == width,
                "a norm is as wide as the residual"
            );
            return Ok(Ends::Plain(norm));
        }
        Ok(Ends::Other(self.block_ops()?, end, width))
    }

    /// See [`lockstep_backend::Ops::end_block`].
    pub(super) fn run_end(
        &mut self,
        residual: &mut CudaTensor,
        delta: Option<&CudaTensor>,
        end: BlockEnd<'_, Buffer<f32>>,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (rows, width) = (residual.rows(), residual.width());
        out.expect(rows, width, "the norm's output");
        if let Some(delta) = delta {
            delta.expect(rows, width, "the residual's delta");
        }
        let ends = self.ends(end, width)?;
        let (rows, delta) = (
            self.chains.rows(rows),
            delta.map(|delta| Sums::from(&delta.floats)),
        );
        let (residual, out) = (&mut residual.floats, &mut out.floats);
        ends.run(&self.operations, &self.stream, residual, delta, rows, out)
    }

    /// See [`lockstep_backend::Ops::join_norms`].
    pub(super) fn run_join(
        &mut self,
        x: &mut CudaTensor,
        y: &CudaTensor,
        norms: [RmsNorm<'_, Buffer<f32>>; 2],
        width: usize,
    ) -> Result<(), CudaError> {
        let (blocks, rows) = (self.block_ops()?, x.rows());
        x.expect(rows, width, "the output of a block");
        y.expect(rows, width, "the output of the block beside it");
        let rows = self.chains.rows(rows);
        blocks.join_norms(&self.stream, &mut x.floats, &y.floats, norms, rows)
    }

    /// See [`lockstep_backend::Ops::square_sums`].
    pub(super) fn sum_squares(
        &mut self,
        qkv: &CudaTensor,
        shape: &AttentionShape,
        counted: CountedKeys,
        sums: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (blocks, rows) = (self.block_ops()?, sums.rows());
        qkv.expect(rows, shape.qkv_width(), "qkv");
        sums.expect(rows, 2, "the sums of squares");
        let (rows, sums) = (self.chains.rows(rows), &mut sums.floats);
        blocks.square_sums(&self.stream, &qkv.floats, shape, counted, rows, sums)
    }

    /// See [`lockstep_backend::Ops::whole_norm`].
    pub(super) fn norm_whole(
        &mut self,
        qkv: &mut CudaTensor,
        shape: &AttentionShape,
        sums: &CudaTensor,
        norms: &WholeNorms<'_, Buffer<f32>>,
    ) -> Result<(), CudaError> {
        let (blocks, rows) = (self.block_ops()?, sums.rows());
        qkv.expect(rows, shape.qkv_width(), "qkv");
        sums.expect(rows, 2, "the sums of squares");
        let (rows, qkv) = (self.chains.rows(rows), &mut qkv.floats);
        blocks.whole_norm(&self.stream, qkv, shape, &sums.floats, norms, rows)
    }

    /// See [`lockstep_backend::Ops::activate`].
    pub(super) fn run_activation(
        &mut self,
        x: &CudaTensor,
        activation: Activation,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (blocks, rows, width) = (self.block_ops()?, out.rows(), out.width());
        x.expect(rows, width, "the activation's input");
        let (rows, out) = (self.chains.rows(rows), &mut out.floats);
        blocks.activate(&self.stream, &x.floats, activation, width, rows, out)
    }

    /// See [`lockstep_backend::Ops::sigmoid_gate`].
    pub(super) fn run_sigmoid_gate(
        &mut self,
        gate: &CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (blocks, rows, width) = (self.block_ops()?, out.rows(), out.width());
        let columns = if gate.width() == 1 { 1 } else { width };
        gate.expect(rows, columns, "the output gate");
        let (rows, out) = (self.chains.rows(rows), &mut out.floats);
        blocks.sigmoid_gate(&self.stream, (&gate.floats, columns), width, rows, out)
    }

    /// See [`lockstep_backend::Ops::scale_logits`].
    pub(super) fn run_scaling(
        &mut self,
        logits: &mut CudaTensor,
        scaling: LogitScaling,
    ) -> Result<(), CudaError> {
        let (blocks, width) = (self.block_ops()?, logits.width());
        let rows = self.chains.rows(logits.rows());
        blocks.scale_logits(&self.stream, &mut logits.floats, scaling, width, rows)
    }
}

//! Latent attention: shape checks around its products and its attention.

use std::sync::Arc;

use lockstep_backend::{LatentShape, LatentSpace};

use super::CudaBackend;
use super::attend::Heads;
use crate::error::CudaError;
use crate::ops::{Beside, LatentOp, LatentOps, PagedCache};
use crate::passes::Inputs;
use crate::tensors::{CudaMatrix, CudaTensor, Element};

impl CudaBackend {
    /// See [`lockstep_backend::Ops::attend_latent`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub(super) fn attend_to_latents(
        &mut self,
        cache: &mut PagedCache,
        layer: usize,
        query: &mut CudaTensor,
        cell: &CudaTensor,
        op: &LatentOp<'_>,
        space: LatentSpace<'_, CudaTensor>,
        inputs: &Inputs,
        out: &mut CudaTensor,
    ) -> Result<(), CudaError> {
        let (shape, tokens) = (op.shape, inputs.tokens().most());
        let absorbed = shape.absorbed();
        let LatentSpace { qkv, means } = space;
        query.expect(tokens, shape.query_width(), "the queries");
        cell.expect(tokens, shape.cell(), "the cells");
        qkv.expect(tokens, absorbed.qkv_width(), "qkv");
        out.expect(tokens, shape.heads * shape.value, "the attention output");
        expect_weights(op);
        let ops = self.latent_ops(cache.element())?;
        let (stream, tensors) = (&self.stream, (&mut query.floats, &cell.floats));
        let at = (&mut *cache, layer);
        let queries = ops.prepare(stream, tensors, op, inputs, at, &mut qkv.floats)?;
        let (heads, to) = (Heads::Ready(queries), (&mut *means, Beside::default()));
        self.attend_heads(&absorbed, heads, inputs, cache, layer, to)?;
        ops.values(&self.stream, &means.floats, op, inputs, &mut out.floats)
    }

    /// Returns the kernels for a cache of a type. The first call compiles them.
    fn latent_ops(&mut self, cached: Element) -> Result<Arc<LatentOps>, CudaError> {
        let made = self.latents.iter().find(|made| made.serve(cached));
        if let Some(made) = made {
            return Ok(made.clone());
        }
        let (context, compiler) = (self.stream.context(), &self.compiler);
        let made = Arc::new(LatentOps::new(context, compiler, self.operand, cached)?);
        self.latents.push(made.clone());
        Ok(made)
    }
}

/// Panics unless each head has both matrices, and each column its weight or its angle.
fn expect_weights(op: &LatentOp<'_>) {
    let &LatentShape {
        heads,
        nope,
        rotated,
        latent,
        value,
        ..
    } = op.shape;
    let are = |matrices: &[CudaMatrix], rows, cols| {
        let fits = |matrix: &CudaMatrix| (matrix.rows, matrix.cols) == (rows, cols);
        matrices.len() == heads && matrices.iter().all(fits)
    };
    assert!(
        are(op.keys, latent, nope) && are(op.values, value, latent),
        "each head has both matrices"
    );
    assert!(
        op.norm.len() == latent && 2 * op.rope.half == rotated,
        "each column has a weight or an angle"
    );
}

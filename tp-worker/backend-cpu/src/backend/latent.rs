//! Latent attention: shape checks around its products and its attention.

use lockstep_backend::{AttendLatent, BackendError, LatentShape, LatentSpace};

use super::CpuBackend;
use crate::attention::CpuKvCache;
use crate::formats::CpuMatrix;
use crate::gemm::{Apart, Element};
use crate::inputs::CpuInputs;
use crate::latent::{HeadProduct, assemble};
use crate::rope::CpuRope;
use crate::tensor::{CpuTensor, CpuVector};

type Op<'a> = AttendLatent<'a, CpuMatrix, CpuVector, CpuRope>;

impl CpuBackend {
    /// See [`lockstep_backend::Ops::attend_latent`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub(super) fn attend_to_latents(
        &mut self,
        cache: &mut CpuKvCache,
        layer: usize,
        query: &CpuTensor,
        cell: &CpuTensor,
        op: &Op<'_>,
        space: LatentSpace<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let (shape, tokens) = (op.shape, inputs.tokens.len());
        let (absorbed, value) = (shape.absorbed(), shape.value);
        let LatentSpace { qkv, means } = space;
        query.expect(tokens, shape.query_width(), "the queries");
        cell.expect(tokens, shape.cell(), "the cells");
        qkv.expect(tokens, absorbed.qkv_width(), "qkv");
        means.expect(tokens, absorbed.out_width(), "the means of latents");
        out.expect(tokens, shape.heads * value, "the attention output");
        cache.expect(&absorbed);
        inputs.expect(&cache.shape);
        expect_weights(op);
        let [apart, qkv_apart, means_apart, out_apart] = [
            [shape.query_width(), shape.nope],
            [absorbed.qkv_width(), shape.cell()],
            [absorbed.out_width(), shape.latent],
            [shape.heads * value, value],
        ]
        .map(|[row, group]| Apart { row, group });
        let (pool, isa) = (&mut self.pool, self.isa);
        let product = HeadProduct {
            matrices: op.keys,
            inputs: (query.values(), apart),
            out: (qkv.values_mut(), qkv_apart),
            tokens,
        };
        product.run(pool, isa, &mut self.routing, &mut self.packed)?;
        let token = (query.values(), cell.values());
        let norm = (op.norm.0.as_slice(), op.eps);
        let turns = (op.rope, inputs.positions.as_slice());
        assemble(pool, isa, shape, token, norm, turns, qkv.values_mut());
        self.attention.run(
            pool,
            isa,
            Element::of(self.dtype),
            cache,
            layer,
            qkv.values(),
            &absorbed,
            None,
            inputs,
            means.values_mut(),
        )?;
        let product = HeadProduct {
            matrices: op.values,
            inputs: (means.values(), means_apart),
            out: (out.values_mut(), out_apart),
            tokens,
        };
        product.run(pool, isa, &mut self.routing, &mut self.packed)
    }
}

/// Panics unless each head has both matrices, and each column its weight or its angle.
fn expect_weights(op: &Op<'_>) {
    let &LatentShape {
        heads,
        nope,
        rotated,
        latent,
        value,
        ..
    } = op.shape;
    let are = |matrices: &[CpuMatrix], rows, cols| {
        let fits = |matrix: &CpuMatrix| (matrix.rows, matrix.cols) == (rows, cols);
        matrices.len() == heads && matrices.iter().all(fits)
    };
    assert!(
        are(op.keys, latent, nope) && are(op.values, value, latent),
        "each head has both matrices"
    );
    assert!(
        op.norm.0.len() == latent && op.rope.pairs() == rotated / 2,
        "each column has a weight or an angle"
    );
}

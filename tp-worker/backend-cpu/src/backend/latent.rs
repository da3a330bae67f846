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

impl CpuBackend {
    /// See [`lockstep_backend::Ops::attend_latent`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub(super) fn attend_to_latents(
        &mut self,
        cache: &mut CpuKvCache,
        layer: usize,
        query: &CpuTensor,
        cell: &CpuTensor,
        op: &AttendLatent<'_, CpuMatrix, CpuVector, CpuRope>,
        space: LatentSpace<'_, CpuTensor>,
        inputs: &CpuInputs,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        let (shape, tokens) = (op.shape, inputs.tokens.len());
        let absorbed = shape.absorbed();
        let LatentSpace { qkv, means } = space;
        let &LatentShape {
            heads,
            nope,
            rotated,
            latent,
            value,
            ..
        } = shape;
        query.expect(tokens, shape.query_width(), "the queries");
        cell.expect(tokens, shape.cell(), "the cells");
        qkv.expect(tokens, absorbed.qkv_width(), "qkv");
        means.expect(tokens, absorbed.out_width(), "the means of latents");
        out.expect(tokens, heads * value, "the attention output");
        cache.expect(&absorbed);
        inputs.expect(&cache.shape);
        let are = |matrices: &[CpuMatrix], rows, cols| {
            let fits = |matrix: &CpuMatrix| (matrix.rows, matrix.cols) == (rows, cols);
            matrices.len() == heads && matrices.iter().all(fits)
        };
        assert!(
            are(op.keys, latent, nope)
                && are(op.values, value, latent)
                && op.norm.0.len() == latent
                && op.rope.pairs() == rotated / 2,
            "each head has both matrices, and each column a weight and an angle"
        );
        let (pool, isa) = (&mut self.pool, self.isa);
        let product = HeadProduct {
            matrices: op.keys,
            inputs: (
                query.values(),
                Apart {
                    row: shape.query_width(),
                    group: nope,
                },
            ),
            out: (
                qkv.values_mut(),
                Apart {
                    row: absorbed.qkv_width(),
                    group: shape.cell(),
                },
            ),
            tokens,
        };
        product.run(pool, isa, &mut self.routing, &mut self.packed)?;
        assemble(
            pool,
            isa,
            shape,
            query.values(),
            cell.values(),
            (&op.norm.0, op.eps),
            op.rope,
            &inputs.positions,
            qkv.values_mut(),
        );
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
            inputs: (
                means.values(),
                Apart {
                    row: absorbed.out_width(),
                    group: latent,
                },
            ),
            out: (
                out.values_mut(),
                Apart {
                    row: heads * value,
                    group: value,
                },
            ),
            tokens,
        };
        product.run(pool, isa, &mut self.routing, &mut self.packed)
    }
}

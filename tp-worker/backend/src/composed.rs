//! Operations that are made of other operations, for devices that have no faster way.

use crate::{Attend, AttentionShape, BackendError, BlockEnd, Exchange, Ops, RmsNorm, RowParallel};

/// The default of [`Exchange::matmul_end_block`].
pub(crate) fn matmul_end_block<B: Exchange>(
    backend: &mut B,
    x: &B::Tensor,
    w: RowParallel<'_, B::Matrix, B::Vector>,
    residual: &mut B::Tensor,
    delta: &mut B::Tensor,
    end: BlockEnd<'_, B::Vector>,
    out: &mut B::Tensor,
) -> Result<(), BackendError> {
    backend.matmul(x, w.part, delta);
    backend.all_reduce(w.axis, delta)?;
    backend.end_block(residual, Some(delta), end, out);
    Ok(())
}

/// The default of [`Ops::join_norms`].
pub(crate) fn join_norms<B: Ops>(
    backend: &mut B,
    x: &mut B::Tensor,
    y: &B::Tensor,
    [of_x, of_y]: [RmsNorm<'_, B::Vector>; 2],
    width: usize,
    space: &mut B::Tensor,
) {
    let whole = AttentionShape::dense(1, 0, width, 1.0);
    backend.head_norm(x, &whole, 0..1, of_x.weight, of_x.eps);
    let end = BlockEnd {
        output: Some(of_y),
        next: None,
    };
    backend.end_block(x, Some(y), end, space);
}

/// The default of [`Ops::attend`].
pub(crate) fn attend<B: Ops>(
    backend: &mut B,
    cache: &mut B::KvCache,
    layer: usize,
    qkv: &mut B::Tensor,
    op: &Attend<'_, B::Matrix, B::Vector, B::Rope>,
    inputs: &B::Inputs,
    out: &mut B::Tensor,
) {
    let shape = op.shape;
    let keys = shape.heads..shape.heads + shape.kv_heads;
    let values = keys.end..keys.end + shape.kv_heads;
    let kinds = [
        (0..shape.heads, op.q_norm),
        (keys, op.k_norm),
        (values, op.v_norm),
    ];
    for (heads, weight) in kinds {
        if let Some(weight) = weight {
            backend.head_norm(qkv, shape, heads, weight, op.eps);
        }
    }
    backend.rope(qkv, shape, op.rope, inputs);
    backend.attention(cache, layer, qkv, shape, op.sinks, inputs, out);
}

//! Operations that are made of other operations, for devices that have no faster way.

use crate::{Attend, BackendError, BlockEnd, Exchange, Ops, RowParallel};

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

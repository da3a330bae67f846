//! One transformer layer, as models and draft heads run it.

mod buffers;
mod host;

use lockstep_backend::{AttentionShape, Backend, BackendError, Batch, Linear, RmsNorm, RopeTable};
use lockstep_types::ModelConfig;

use crate::{Shard, rope_table};

pub(crate) use buffers::{AttentionBuffers, LayerBuffers};
pub(crate) use host::{HostLayer, LayerSource};

/// One layer's weights, without the norm before its attention. Biases of
/// row-parallel projections (`o`, `down`) are on rank 0 alone, so that the sum
/// over ranks contains them once.
pub(crate) struct Layer<B: Backend> {
    /// Its place in the cache.
    pub number: usize,
    pub qkv: B::Matrix,
    pub qkv_bias: Option<B::Vector>,
    pub q_norm: Option<B::Vector>,
    pub k_norm: Option<B::Vector>,
    pub output: B::Matrix,
    pub output_bias: Option<B::Vector>,
    pub post_norm: B::Vector,
    pub gate_up: B::Matrix,
    pub gate_up_bias: Option<B::Vector>,
    pub down: B::Matrix,
    pub down_bias: Option<B::Vector>,
}

/// What all layers of a model share.
pub(crate) struct Geometry {
    /// This rank's heads.
    pub attention: AttentionShape,
    /// Angles of every position served.
    pub rope: RopeTable,
    /// Added to the mean square in every norm.
    pub eps: f32,
}

impl Geometry {
    /// A shard's heads at positions `0..positions`.
    pub fn new(model: &ModelConfig, shard: &Shard, positions: usize) -> Self {
        Self {
            attention: AttentionShape {
                heads: shard.heads.len(),
                kv_heads: shard.kv_heads.len(),
                head_dim: model.head_dim,
                scale: (model.head_dim as f32).sqrt().recip(),
            },
            rope: rope_table(&model.rope, model.head_dim, positions),
            eps: model.rms_norm_eps,
        }
    }
}

impl<B: Backend> Layer<B> {
    /// Matrices, for counting bytes.
    pub fn matrices(&self) -> [&B::Matrix; 4] {
        [&self.qkv, &self.output, &self.gate_up, &self.down]
    }

    /// From what the projections read, `[n, inputs]`, to the attention output.
    pub fn attend(
        &self,
        backend: &mut B,
        geometry: &Geometry,
        input: &B::Tensor,
        buffers: &mut AttentionBuffers<B>,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
    ) {
        let (shape, eps) = (&geometry.attention, geometry.eps);
        let AttentionBuffers { qkv, attended } = buffers;
        backend.matmul(input, &self.qkv, self.qkv_bias.as_ref(), qkv);
        if let Some(weight) = &self.q_norm {
            backend.head_norm(qkv, shape, 0..shape.heads, weight, eps);
        }
        if let Some(weight) = &self.k_norm {
            let keys = shape.heads..shape.heads + shape.kv_heads;
            backend.head_norm(qkv, shape, keys, weight, eps);
        }
        backend.rope(qkv, shape, &geometry.rope, batch.positions);
        backend.attention(cache, self.number, qkv, shape, batch, attended);
    }

    /// From the attention output to the residual stream behind the layer, and
    /// that normed with `next_norm`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn finish(
        &self,
        backend: &mut B,
        geometry: &Geometry,
        buffers: &mut LayerBuffers<B>,
        next_norm: &B::Vector,
    ) -> Result<(), BackendError> {
        let eps = geometry.eps;
        let norm = |weight| RmsNorm { weight, eps };
        let LayerBuffers {
            residual,
            delta,
            normed,
            attention,
            gate_up,
            activated,
        } = buffers;
        let output = Linear {
            weight: &self.output,
            bias: self.output_bias.as_ref(),
        };
        let (attended, post) = (&attention.attended, norm(&self.post_norm));
        backend.matmul_add_rms_norm(attended, output, residual, delta, post, normed)?;
        backend.matmul(normed, &self.gate_up, self.gate_up_bias.as_ref(), gate_up);
        backend.silu_mul(gate_up, activated);
        let down = Linear {
            weight: &self.down,
            bias: self.down_bias.as_ref(),
        };
        let next = norm(next_norm);
        backend.matmul_add_rms_norm(activated, down, residual, delta, next, normed)
    }
}

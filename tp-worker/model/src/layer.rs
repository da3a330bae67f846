//! One transformer layer, as models and draft heads run it.

mod buffers;
mod host;

use lockstep_backend::{
    Attend, AttentionShape, Axis, Backend, BackendError, Linear, MatrixRole, MatrixShape, RmsNorm,
    RowParallel, Scatter,
};
use lockstep_types::ModelConfig;

use crate::{Shard, crossing::Crossing, rope_table, topology::attention_axis};

pub(crate) use buffers::{AttentionBuffers, Boundary, LayerBuffers, SecondHalf};
pub(crate) use host::{HostLayer, LayerSource};

/// One layer's weights, without the norm before its attention. Biases of
/// row-parallel projections (`o`, `down`) are on one rank alone of those that they
/// are split over, so that the sum over ranks contains them once.
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

/// Sizes of a layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerSizes {
    /// This rank's heads.
    pub attention: AttentionShape,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Columns of the query, key and value projections.
    pub inputs: usize,
    /// This rank's columns of the MLP.
    pub mlp: usize,
}

impl LayerSizes {
    /// Of a shard's layers, whose projections read `inputs` columns.
    pub fn new(model: &ModelConfig, shard: &Shard, inputs: usize) -> Self {
        Self {
            attention: AttentionShape {
                heads: shard.heads.len(),
                kv_heads: shard.kv_heads.len(),
                head_dim: model.head_dim,
                scale: (model.head_dim as f32).sqrt().recip(),
            },
            hidden: model.hidden_size,
            inputs,
            mlp: shard.mlp.len(),
        }
    }

    /// Its matrices, in the order of [`Layer::matrices`].
    pub fn matrices(&self) -> [MatrixShape; 4] {
        [
            (self.attention.qkv_width(), self.inputs),
            (self.hidden, self.attention.out_width()),
            (2 * self.mlp, self.hidden),
            (self.hidden, self.mlp),
        ]
        .map(|(rows, cols)| MatrixShape {
            rows,
            cols,
            role: MatrixRole::Projection,
        })
    }
}

/// What all layers of a model share.
pub(crate) struct LayerShape<B: Backend> {
    /// The ranks that MLPs are split over.
    pub axis: Axis,
    /// The ranks that attention is split over.
    pub attention_axis: Axis,
    /// This rank's heads.
    pub attention: AttentionShape,
    /// Angles of every position served.
    pub rope: B::Rope,
    /// Added to the mean square in every norm.
    pub eps: f32,
}

impl<B: Backend> LayerShape<B> {
    /// A shard's heads at positions `0..positions`, over the ranks of `axis`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        axis: Axis,
        model: &ModelConfig,
        shard: &Shard,
        positions: usize,
    ) -> Result<Self, BackendError> {
        let table = rope_table(&model.rope, model.head_dim, positions);
        Ok(Self {
            axis,
            attention_axis: attention_axis(axis),
            attention: LayerSizes::new(model, shard, model.hidden_size).attention,
            rope: backend.load_rope(table)?,
            eps: model.rms_norm_eps,
        })
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
        shape: &LayerShape<B>,
        input: &B::Tensor,
        buffers: &mut AttentionBuffers<B::Tensor>,
        cache: &mut B::KvCache,
        inputs: &B::Inputs,
    ) {
        let AttentionBuffers { qkv, attended } = buffers;
        backend.matmul(input, &self.qkv, self.qkv_bias.as_ref(), qkv);
        let op = Attend {
            shape: &shape.attention,
            q_norm: self.q_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            eps: shape.eps,
            rope: &shape.rope,
        };
        backend.attend(cache, self.number, qkv, &op, inputs, attended);
    }

    /// From the attention output to the residual stream behind the layer, and
    /// that normed with `next_norm`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn finish(
        &self,
        backend: &mut B,
        shape: &LayerShape<B>,
        buffers: SecondHalf<'_, B::Tensor>,
        next_norm: &B::Vector,
    ) -> Result<(), BackendError> {
        let eps = shape.eps;
        let norm = |weight| RmsNorm { weight, eps };
        let SecondHalf {
            attended,
            residual,
            delta,
            normed,
            gate_up,
            activated,
            boundary,
        } = buffers;
        let output = RowParallel {
            axis: shape.attention_axis,
            part: Linear {
                weight: &self.output,
                bias: self.output_bias.as_ref(),
            },
        };
        let post = norm(&self.post_norm);
        backend.matmul_add_rms_norm(attended, output, residual, delta, post, normed)?;
        let gated = Linear {
            weight: &self.gate_up,
            bias: self.gate_up_bias.as_ref(),
        };
        let down = RowParallel {
            axis: shape.axis,
            part: Linear {
                weight: &self.down,
                bias: self.down_bias.as_ref(),
            },
        };
        let next = norm(next_norm);
        match boundary {
            Boundary::SameRows => {
                backend.gated_matmul(normed, gated, gate_up, activated);
                backend.matmul_add_rms_norm(activated, down, residual, delta, next, normed)
            }
            Boundary::AllRows {
                crossing,
                gathered,
                product,
            } => {
                let Crossing {
                    counts,
                    first,
                    rows,
                    ..
                } = crossing;
                backend.all_gather_rows(shape.axis, normed, *first, counts, gathered)?;
                backend.gated_matmul(gathered, gated, gate_up, activated);
                let scatter = Scatter { rows, product };
                backend
                    .matmul_scatter_add_rms_norm(activated, down, scatter, residual, next, normed)
            }
        }
    }
}

//! One transformer layer, as models and draft heads run it.

mod buffers;

use lockstep_backend::{AttentionShape, Axis, Backend, BackendError, RmsNorm};
use lockstep_types::ModelConfig;

use super::{
    Attention, GatedMlp,
    parts::{Convert, Form, Listed, Tensors, VectorPart},
};
use crate::{CollectiveStep, Shard, Topology, rope_table, topology::attention_axis};

pub(crate) use buffers::{LayerBuffers, SecondHalf};

/// One layer, without the norm before its attention.
pub(crate) struct Layer<F: Form> {
    pub attention: Attention<F>,
    /// Between attention and MLP, `[hidden]`.
    pub post_norm: F::Vector,
    pub mlp: GatedMlp<F>,
}

/// Where a layer stands in a model, and what a rank takes of it.
#[derive(Clone, Copy)]
pub(crate) struct LayerPlace<'m> {
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Its place in the cache.
    pub number: usize,
    /// The beginning of its tensors' names: "model.layers.3".
    pub prefix: &'m str,
    /// Columns of its query, key and value projections.
    pub inputs: usize,
}

/// Widths of a layer's activations on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerSizes {
    /// This rank's heads.
    pub attention: AttentionShape,
    /// Width of the residual stream.
    pub hidden: usize,
    /// This rank's columns of the MLP.
    pub mlp: usize,
}

impl LayerSizes {
    /// Those of a shard's layers.
    pub fn new(model: &ModelConfig, shard: &Shard) -> Self {
        Self {
            attention: Attention::shape(model, shard),
            hidden: model.hidden_size,
            mlp: shard.mlp.len(),
        }
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
            attention: Attention::shape(model, shard),
            rope: backend.load_rope(table)?,
            eps: model.rms_norm_eps,
        })
    }
}

impl Layer<Listed> {
    /// The tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let norm = format!("{}.post_attention_layernorm.weight", place.prefix);
        Self {
            attention: Attention::listed(place),
            post_norm: VectorPart::whole(norm, place.model.hidden_size),
            mlp: GatedMlp::listed(place),
        }
    }

    /// The collectives of a pass, in a model of the width `hidden` that is split over the
    /// ranks of `axis`.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Vec<CollectiveStep> {
        let attention = Attention::collectives(hidden, topology, axis);
        let mlp = GatedMlp::collectives(hidden, topology, axis);
        attention.into_iter().chain(mlp).collect()
    }
}

impl<F: Form> Tensors<F> for Layer<F> {
    type In<T: Form> = Layer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Layer<C::To>, C::Error> {
        Ok(Layer {
            attention: self.attention.convert(to)?,
            post_norm: to.vector(&self.post_norm)?,
            mlp: self.mlp.convert(to)?,
        })
    }
}

impl<B: Backend> Layer<B> {
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
        let norm = |weight| RmsNorm {
            weight,
            eps: shape.eps,
        };
        backend.matmul_add_rms_norm(
            buffers.attended,
            self.attention.output.row_parallel(shape.attention_axis),
            buffers.residual,
            buffers.delta,
            norm(&self.post_norm),
            buffers.normed,
        )?;
        self.mlp.run(backend, shape, buffers, norm(next_norm))
    }
}

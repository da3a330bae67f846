//! One transformer layer of a model or of a draft head.

mod buffers;

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm};
use lockstep_types::ModelConfig;

use super::{
    Attention, GatedMlp, LayerContext, LayerPlace, Norm, Variants, attention_shapes, mlp_widths,
    parts::{Convert, Form, Listed, Tensors},
    rope_tables,
};
use crate::{CollectiveStep, Shard, Topology};

pub(crate) use buffers::{LayerBuffers, SecondHalf};

/// One layer, without the norm before its attention.
pub(crate) struct Layer<F: Form> {
    pub attention: Attention<F>,
    /// Norm between attention and MLP.
    pub post_norm: Norm<F>,
    pub mlp: GatedMlp<F>,
}

impl Layer<Listed> {
    /// Lists the tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let norm = format!("{}.post_attention_layernorm.weight", place.prefix);
        Self {
            attention: Attention::listed(place),
            post_norm: Norm::listed(norm, place.model.hidden_size, place.spec().rms_norm_eps),
            mlp: GatedMlp::listed(place),
        }
    }

    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn variants(model: &ModelConfig, shard: &Shard) -> Variants {
        Variants {
            caches: model.kv_groups(),
            attention: attention_shapes(model, shard),
            ropes: rope_tables(model),
            mlps: mlp_widths(model),
        }
    }

    /// Returns the collectives of one layer in a pass. The model has the width `hidden` and
    /// is split over the ranks of `axis`.
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
            post_norm: self.post_norm.convert(to)?,
            mlp: self.mlp.convert(to)?,
        })
    }
}

impl<B: Backend> Layer<B> {
    /// Runs the second half of the layer: adds the output projection and the MLP to the
    /// residual stream, and norms the sum with `next`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn finish(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        buffers: SecondHalf<'_, B::Tensor>,
        next: RmsNorm<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        backend.matmul_add_rms_norm(
            buffers.attended,
            self.attention.output.row_parallel(context.attention_axis),
            buffers.mlp.residual,
            buffers.mlp.delta,
            self.post_norm.operand(),
            buffers.mlp.normed,
        )?;
        self.mlp.run(backend, context.axis, buffers.mlp, next)
    }
}

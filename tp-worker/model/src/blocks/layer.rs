//! One transformer layer of a model or of a draft head.

mod buffers;

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm};
use lockstep_types::{LayerSpec, ModelConfig, Norms};

use super::{
    LayerContext, LayerPlace, Mixer, Mlp, Norm, Variants, attention_widths, gated_mlp_widths,
    parts::{Convert, Form, Listed, Tensors},
    rope_tables,
};
use crate::{CollectiveStep, Shard, Topology};

pub(crate) use buffers::{LayerBuffers, SecondHalf};

/// A transformer layer without the norm before its mixer.
pub(crate) struct Layer<F: Form> {
    pub mixer: Mixer<F>,
    /// Norm between mixer and MLP.
    pub mlp_norm: Norm<F>,
    pub mlp: Mlp<F>,
}

impl Layer<Listed> {
    /// Lists the tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let (model, spec) = (place.model, place.spec());
        let mlp_norm = match spec.norms {
            Norms::Before => place.name(&model.names.mlp_norm),
        };
        Self {
            mixer: Mixer::listed(place),
            mlp_norm: Norm::listed(&mlp_norm, model.hidden_size, spec.rms_norm_eps),
            mlp: Mlp::listed(place),
        }
    }

    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn variants(model: &ModelConfig, shard: &Shard) -> Variants {
        Variants {
            caches: model.kv_groups(),
            attention: attention_widths(model, shard),
            ropes: rope_tables(model),
            gated_mlps: gated_mlp_widths(model),
        }
    }

    /// Returns the collectives of the layer that `spec` describes, in a pass of a model that
    /// has the width `hidden` and is split over the ranks of `axis`.
    pub fn collectives(
        spec: &LayerSpec,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Vec<CollectiveStep> {
        let mixer = Mixer::collectives(spec, hidden, topology, axis);
        let mlp = Mlp::collectives(spec, hidden, topology, axis);
        mixer.into_iter().chain(mlp).collect()
    }
}

impl<F: Form> Tensors<F> for Layer<F> {
    type In<T: Form> = Layer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Layer<C::To>, C::Error> {
        Ok(Layer {
            mixer: self.mixer.convert(to)?,
            mlp_norm: self.mlp_norm.convert(to)?,
            mlp: self.mlp.convert(to)?,
        })
    }
}

impl<B: Backend> Layer<B> {
    /// Runs the second half of the layer: adds the mixer's projection and the MLP to the
    /// residual stream, and norms the sum with `next`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn finish(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        half: SecondHalf<'_, B::Tensor>,
        next: RmsNorm<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let SecondHalf { mixed, stream, mlp } = half;
        backend.matmul_add_rms_norm(
            mixed,
            self.mixer.output().row_parallel(context.attention_axis),
            stream.residual,
            stream.delta,
            self.mlp_norm.operand(),
            stream.normed,
        )?;
        self.mlp.run(backend, context.axis, stream, mlp, next)
    }
}

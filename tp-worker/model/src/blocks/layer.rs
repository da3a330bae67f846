//! One transformer layer of a model or of a draft head.

mod buffers;

use lockstep_backend::{self as backend, Axis, Backend, BackendError, BlockEnd};
use lockstep_types::{self as types, LayerSpec, ModelConfig};

use super::{
    LayerContext, LayerPlace, Linear, Mixer, MixerBuffers, MixerVariants, Mlp, MlpOperands,
    MlpVariants, Norm,
    adapted::Input,
    cache::ModelCache,
    parts::{Convert, Form, Listed, Tensors},
    per_layer::PerLayer,
};
use crate::{CollectiveStep, Shard, Topology};

pub(crate) use buffers::{LayerBuffers, SecondHalf};

/// A transformer layer without the norm before its mixer.
pub(crate) struct Layer<F: Form> {
    /// `None` in a layer that is an MLP alone.
    pub mixer: Option<Mixer<F>>,
    /// Norm of the mixer's output; `None` if that is added as it is.
    pub mixer_output_norm: Option<Norm<F>>,
    /// Norm between mixer and MLP; `None` if the MLP reads the residual stream as it is, or is alone.
    pub mlp_norm: Option<Norm<F>>,
    /// `None` in a layer that is a mixer alone.
    pub mlp: Option<Mlp<F>>,
    /// Norm of the MLP's output; `None` if that is added as it is.
    pub mlp_output_norm: Option<Norm<F>>,
    /// Block behind the MLP that adds something of the token itself; `None` in most models.
    pub per_layer: Option<PerLayer<F>>,
}

/// Distinct sizes of a model's blocks on one rank.
pub(crate) struct Variants {
    pub mixers: MixerVariants,
    pub mlps: MlpVariants,
}

impl Variants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        Self {
            mixers: MixerVariants::of(model, shard),
            mlps: MlpVariants::of(model, shard),
        }
    }
}

impl Layer<Listed> {
    /// Lists the tensors of the layer at `place`, whose blocks find their own among `variants`.
    pub fn listed(place: &LayerPlace<'_>, variants: &Variants) -> Self {
        let (model, spec, number) = (place.model, place.spec(), place.number);
        let (names, eps) = (&model.names, spec.rms_norm_eps);
        let output_norm = |name: &str| {
            let after = spec.norms.after();
            after.then(|| Norm::of_output(model, number, &place.name(name), eps))
        };
        let both = spec.mixer != types::Mixer::None && spec.mlp != types::Mlp::None;
        let before = spec.norms.before() && both;
        Self {
            mixer: Mixer::listed(place, &variants.mixers),
            mixer_output_norm: output_norm(&names.mixer_output_norm),
            mlp_norm: before
                .then(|| Norm::of_stream(model, number, &place.name(&names.mlp_norm), eps)),
            mlp: Mlp::listed(place, &variants.mlps),
            mlp_output_norm: output_norm(&names.mlp_output_norm),
            per_layer: PerLayer::listed(place),
        }
    }

    /// Returns the collective of [`Self::mix`] in the layer that `spec` describes, in a pass of
    /// a model that is split over the ranks of `axis`.
    pub fn mix_collective(
        spec: &LayerSpec,
        topology: Topology,
        axis: Axis,
    ) -> Option<CollectiveStep> {
        Mixer::collective(spec, topology, axis)
    }

    /// Returns the collectives of [`Self::finish`] in the layer that `spec` describes, in a pass
    /// of a model that has the width `hidden` and is split over the ranks of `axis`.
    pub fn finish_collectives(
        spec: &LayerSpec,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Vec<CollectiveStep> {
        let output = Mixer::output_collective(spec, hidden, topology, axis);
        let mut steps: Vec<_> = output.into_iter().collect();
        if spec.mlp != types::Mlp::None {
            steps.extend(Mlp::collectives(&spec.mlp, hidden, topology, axis));
        }
        steps
    }
}

impl<F: Form> Tensors<F> for Layer<F> {
    type In<T: Form> = Layer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Layer<C::To>, C::Error> {
        Ok(Layer {
            mixer: self.mixer.convert(to)?,
            mixer_output_norm: self.mixer_output_norm.convert(to)?,
            mlp_norm: self.mlp_norm.convert(to)?,
            mlp: self.mlp.convert(to)?,
            mlp_output_norm: self.mlp_output_norm.convert(to)?,
            per_layer: self.per_layer.convert(to)?,
        })
    }
}

impl<F: Form> Layer<F> {
    /// Returns the projections that adapters may add to, in a fixed order.
    pub fn adaptable(&mut self) -> impl Iterator<Item = &mut Linear<F>> {
        let mixer = self.mixer.iter_mut().flat_map(Mixer::adaptable);
        mixer.chain(self.mlp.iter_mut().flat_map(Mlp::adaptable))
    }
}

impl<B: Backend> Layer<B> {
    /// Runs the mixer over `input`, `[n, inputs]`, if the layer has one: see [`Mixer::run`].
    ///
    /// # Errors
    /// The errors of [`Mixer::run`].
    pub fn mix<'i>(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: impl Into<Input<'i, B::Tensor>>,
        buffers: &mut MixerBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError>
    where
        B::Tensor: 'i,
    {
        match &self.mixer {
            Some(mixer) => mixer.run(backend, context, input.into(), buffers, cache, inputs),
            None => Ok(()),
        }
    }

    /// Runs the second half of the layer: adds the mixer's projection, the MLP, and what the layer
    /// has for itself of tokens to the residual stream, and reads the sum through the norm `next`,
    /// or as it is.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn finish(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        half: SecondHalf<'_, B::Tensor>,
        next: Option<backend::Norm<'_, B::Vector>>,
    ) -> Result<(), BackendError> {
        let SecondHalf {
            mixed,
            places,
            stream,
            mlp,
            per_layer,
        } = half;
        if let (Some(mixer), Some(rows)) = (&self.mixer, mixed) {
            let between = self.mlp_norm.as_ref().map(Norm::operand);
            let end = BlockEnd {
                output: self.mixer_output_norm.as_ref().map(Norm::rms),
                next: if self.mlp.is_some() { between } else { next },
            };
            mixer.output().end_block(
                backend,
                (context, context.attention_axis),
                Input { rows, places },
                stream.residual,
                stream.delta,
                end,
                stream.normed,
            )?;
        }
        let Some(own_mlp) = &self.mlp else {
            return Ok(());
        };
        let output = self.mlp_output_norm.as_ref().map(Norm::rms);
        let Some((own, half)) = self.per_layer.as_ref().zip(per_layer) else {
            let end = BlockEnd { output, next };
            return own_mlp.run(backend, context, stream, mlp, end);
        };
        let MlpOperands {
            residual,
            delta,
            normed,
            places,
            boundary,
        } = stream;
        let operands = MlpOperands {
            residual: &mut *residual,
            delta: &mut *delta,
            normed: &mut *normed,
            places,
            boundary,
        };
        let end = BlockEnd { output, next: None };
        own_mlp.run(backend, context, operands, mlp, end)?;
        own.add(backend, half, [residual, delta, normed], next)
    }
}

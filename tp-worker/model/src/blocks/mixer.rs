//! Mixers: the block of a layer that lets positions see each other, such as attention.
//!
//! Every mixer reads a norm of the residual stream, leaves columns for each token, and ends in
//! a projection of these columns back to the residual stream. The layer runs that projection,
//! because only some rows may be wanted of the columns.

mod attention;
mod gated_delta;
mod latent;

use lockstep_backend::{AttentionShape, Axis, Backend, BackendError, DeltaShape, LatentHeads};
use lockstep_types::{self as types, LayerSpec, ModelConfig};

use super::{
    LayerContext, LayerPlace, Linear,
    allocate::Allocate,
    cache::ModelCache,
    distinct::distinct,
    parts::{Convert, Form, Listed, Tensors},
    recurrent::{delta_shape, delta_shapes},
};
use crate::{CollectiveStep, Shard, Topology};
use attention::{Attention, AttentionBuffers, AttentionVariants};
use gated_delta::{GatedDelta, GatedDeltaBuffers};
use latent::{LatentAttention, LatentBuffers, LatentVariants, latent_shapes};

/// Returns the distinct attention shapes of a model's layers on one rank.
pub(crate) fn attention_shapes(model: &ModelConfig, shard: &Shard) -> Vec<AttentionShape> {
    let attentions = model.attentions();
    let shapes = attentions.map(|attention| Attention::shape(attention, shard));
    distinct(shapes.chain(latent_shapes(model, shard)))
}

/// Returns the distinct matrices of heads that attend to latents, in `model`.
pub(crate) fn latent_heads<'m>(
    model: &ModelConfig,
    mixers: impl Iterator<Item = &'m Mixer<Listed>>,
) -> Vec<LatentHeads> {
    distinct(mixers.filter_map(|mixer| match mixer {
        Mixer::Attention(_) | Mixer::GatedDelta(_) => None,
        Mixer::LatentAttention(latent) => latent.heads(model),
    }))
}

/// One rank's part of a layer's mixer.
pub(crate) enum Mixer<F: Form> {
    Attention(Attention<F>),
    GatedDelta(GatedDelta<F>),
    LatentAttention(LatentAttention<F>),
}

/// Distinct sizes of a model's mixers on one rank, kind by kind. Layers of one size share
/// buffers. The lists are made once for a model, not once for each layer.
pub(crate) struct MixerVariants {
    attention: AttentionVariants,
    gated_delta: Vec<DeltaShape>,
    latent: LatentVariants,
}

impl MixerVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        Self {
            attention: AttentionVariants::of(model, shard),
            gated_delta: delta_shapes(model, shard),
            latent: LatentVariants::of(model, shard),
        }
    }
}

/// Activations of mixers, for each kind and each of its variants.
pub(crate) struct MixerBuffers<T> {
    /// Buffers for each of [`AttentionVariants::widths`].
    pub attention: Vec<AttentionBuffers<T>>,
    /// Buffers for each of [`delta_shapes`].
    pub gated_delta: Vec<GatedDeltaBuffers<T>>,
    /// Buffers for each of [`LatentVariants::widths`].
    pub latent: Vec<LatentBuffers<T>>,
}

impl<T> MixerBuffers<T> {
    /// Allocates buffers for `variants` and passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        variants: &MixerVariants,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let attention = variants.attention.widths.iter();
        let attention = attention.map(|widths| AttentionBuffers::new(device, *widths, tokens));
        let attention = attention.collect::<Result<_, _>>()?;
        let deltas = variants.gated_delta.iter();
        let deltas = deltas.map(|shape| GatedDeltaBuffers::new(device, *shape, tokens));
        let gated_delta = deltas.collect::<Result<_, _>>()?;
        let latent = variants.latent.widths.iter();
        let latent = latent.map(|widths| LatentBuffers::new(device, *widths, tokens));
        Ok(Self {
            attention,
            gated_delta,
            latent: latent.collect::<Result<_, _>>()?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for attention in &mut self.attention {
            attention.set_rows(backend, rows);
        }
        for delta in &mut self.gated_delta {
            delta.set_rows(backend, rows);
        }
        for latent in &mut self.latent {
            latent.set_rows(backend, rows);
        }
    }
}

impl Mixer<Listed> {
    /// Lists the tensors of the mixer of the layer at `place`, which finds its own among
    /// `variants`.
    pub fn listed(place: &LayerPlace<'_>, variants: &MixerVariants) -> Self {
        match &place.spec().mixer {
            types::Mixer::Attention(spec) => {
                Self::Attention(Attention::listed(place, spec, &variants.attention))
            }
            types::Mixer::GatedDelta(spec) => {
                Self::GatedDelta(GatedDelta::listed(place, spec, &variants.gated_delta))
            }
            types::Mixer::LatentAttention(spec) => {
                Self::LatentAttention(LatentAttention::listed(place, spec, &variants.latent))
            }
        }
    }

    /// Returns the collectives of the mixer of `layer` in a pass, in a model of width
    /// `hidden`.
    pub fn collectives(
        layer: &LayerSpec,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Vec<CollectiveStep> {
        match &layer.mixer {
            types::Mixer::Attention(spec) => Attention::collectives(spec, hidden, topology, axis),
            types::Mixer::GatedDelta(_) => GatedDelta::collectives(hidden, topology, axis),
            types::Mixer::LatentAttention(_) => {
                LatentAttention::collectives(hidden, topology, axis)
            }
        }
    }

    /// Returns the number of columns that the mixer of `layer` leaves on one rank.
    pub fn columns(layer: &LayerSpec, shard: &Shard) -> usize {
        match &layer.mixer {
            types::Mixer::Attention(spec) => Attention::shape(spec, shard).out_width(),
            types::Mixer::GatedDelta(spec) => delta_shape(spec, shard).value_width(),
            types::Mixer::LatentAttention(spec) => {
                let shape = LatentAttention::shape(spec, shard);
                shape.heads * shape.value
            }
        }
    }
}

impl<F: Form> Mixer<F> {
    /// Returns the projection back to the residual stream.
    pub fn output(&self) -> &Linear<F> {
        match self {
            Self::Attention(attention) => &attention.output,
            Self::GatedDelta(delta) => &delta.output,
            Self::LatentAttention(latent) => &latent.output,
        }
    }

    /// Returns the columns that [`Self::run`] leaves in `buffers`.
    pub fn mixed<'b, T>(&self, buffers: &'b MixerBuffers<T>) -> &'b T {
        match self {
            Self::Attention(attention) => &buffers.attention[attention.buffers].attended,
            Self::GatedDelta(delta) => &buffers.gated_delta[delta.buffers].mixed,
            Self::LatentAttention(latent) => &buffers.latent[latent.buffers].attended,
        }
    }
}

impl<F: Form> Tensors<F> for Mixer<F> {
    type In<T: Form> = Mixer<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Mixer<C::To>, C::Error> {
        Ok(match self {
            Self::Attention(attention) => Mixer::Attention(attention.convert(to)?),
            Self::GatedDelta(delta) => Mixer::GatedDelta(delta.convert(to)?),
            Self::LatentAttention(latent) => Mixer::LatentAttention(latent.convert(to)?),
        })
    }
}

impl<B: Backend> Mixer<B> {
    /// Reads `input` `[n, inputs]`, updates `cache`, and leaves the [`Self::mixed`] columns in
    /// `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] for a mixer that the device does
    /// not have; [`BackendError::OutOfMemory`] for working memory.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: &B::Tensor,
        buffers: &mut MixerBuffers<B::Tensor>,
        cache: &mut ModelCache<B>,
        inputs: &B::Inputs,
    ) -> Result<(), BackendError> {
        match self {
            Self::Attention(attention) => {
                let buffers = &mut buffers.attention[attention.buffers];
                attention.run(backend, context, input, buffers, cache, inputs)
            }
            Self::GatedDelta(delta) => {
                let buffers = &mut buffers.gated_delta[delta.buffers];
                delta.run(backend, input, buffers, cache, inputs)
            }
            Self::LatentAttention(latent) => {
                let buffers = &mut buffers.latent[latent.buffers];
                latent.run(backend, context, input, buffers, cache, inputs)
            }
        }
    }
}

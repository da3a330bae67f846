//! Mixers: the block of a layer that lets positions see each other, such as attention.
//!
//! Every mixer reads a norm of the residual stream, leaves columns for each token, and ends in
//! a projection of these columns back to the residual stream. The layer runs that projection,
//! because only some rows may be wanted of the columns.

mod attention;
mod gated_delta;
mod latent;
mod mamba2;
mod short_convolution;

use lockstep_backend::{
    AttentionShape, Axis, Backend, BackendError, ConvolutionShape, DeltaShape, LatentHeads,
};
use lockstep_types::{self as types, LayerSpec, ModelConfig};

use super::{
    LayerContext, LayerPlace, Linear,
    adapted::Input,
    allocate::Allocate,
    cache::ModelCache,
    distinct::distinct,
    parts::{Convert, Form, Listed, Tensors},
    recurrent::{convolution_shape, delta_shape, mamba_shape},
};
use crate::{CollectiveStep, Shard, Topology, split::topology::attention_axis};
use attention::{Attention, AttentionBuffers, AttentionVariants};
use gated_delta::{GatedDelta, GatedDeltaBuffers};
use latent::{LatentAttention, LatentBuffers, LatentVariants, latent_shapes};
use mamba2::{Mamba2, Mamba2Buffers, Mamba2Sizes};
use short_convolution::{ShortConvolution, ShortConvolutionBuffers};

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
        Mixer::LatentAttention(latent) => latent.heads(model),
        _ => None,
    }))
}

/// Returns a sum of `width` columns over the ranks that heads are split over. There is none with
/// several DP ranks of one rank each.
fn sum_of_heads(width: usize, topology: Topology, axis: Axis) -> Option<CollectiveStep> {
    let alone = topology.dp_size() > 1 && topology.attention.size == 1;
    (!alone).then(|| CollectiveStep::sum(attention_axis(axis), width))
}

/// One rank's part of a layer's mixer.
pub(crate) enum Mixer<F: Form> {
    Attention(Attention<F>),
    GatedDelta(GatedDelta<F>),
    LatentAttention(LatentAttention<F>),
    Mamba2(Mamba2<F>),
    ShortConvolution(ShortConvolution<F>),
}

/// Distinct sizes of a model's mixers on one rank, kind by kind. Layers of one size share
/// buffers. The lists are made once for a model, not once for each layer.
pub(crate) struct MixerVariants {
    attention: AttentionVariants,
    gated_delta: Vec<DeltaShape>,
    latent: LatentVariants,
    mamba2: Vec<Mamba2Sizes>,
    short: Vec<ConvolutionShape>,
}

impl MixerVariants {
    /// Lists the variants of the layers of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard) -> Self {
        let mixers = || model.layers.iter().map(|layer| &layer.mixer);
        Self {
            attention: AttentionVariants::of(model, shard),
            gated_delta: distinct(mixers().filter_map(|mixer| match mixer {
                types::Mixer::GatedDelta(spec) => Some(delta_shape(spec, shard)),
                _ => None,
            })),
            latent: LatentVariants::of(model, shard),
            mamba2: distinct(mixers().filter_map(|mixer| match mixer {
                types::Mixer::Mamba2(spec) => Some(Mamba2Sizes::of(spec, shard)),
                _ => None,
            })),
            short: distinct(mixers().filter_map(|mixer| match mixer {
                types::Mixer::ShortConvolution(spec) => Some(convolution_shape(spec, shard)),
                _ => None,
            })),
        }
    }
}

/// Activations of mixers, for each kind and each of its variants.
pub(crate) struct MixerBuffers<T> {
    /// Buffers for each of [`AttentionVariants::widths`].
    pub attention: Vec<AttentionBuffers<T>>,
    /// Buffers for each of [`MixerVariants::gated_delta`].
    pub gated_delta: Vec<GatedDeltaBuffers<T>>,
    /// Buffers for each of [`LatentVariants::widths`].
    pub latent: Vec<LatentBuffers<T>>,
    /// Buffers for each of [`MixerVariants::mamba2`].
    pub mamba2: Vec<Mamba2Buffers<T>>,
    /// Buffers for each of [`MixerVariants::short`].
    pub short: Vec<ShortConvolutionBuffers<T>>,
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
        let latent = latent.collect::<Result<_, _>>()?;
        let mamba2 = variants.mamba2.iter();
        let mamba2 = mamba2.map(|sizes| Mamba2Buffers::new(device, *sizes, tokens));
        let mamba2 = mamba2.collect::<Result<_, _>>()?;
        let short = variants.short.iter();
        let short = short.map(|shape| ShortConvolutionBuffers::new(device, *shape, tokens));
        Ok(Self {
            attention,
            gated_delta,
            latent,
            mamba2,
            short: short.collect::<Result<_, _>>()?,
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
        for mamba in &mut self.mamba2 {
            mamba.set_rows(backend, rows);
        }
        for short in &mut self.short {
            short.set_rows(backend, rows);
        }
    }
}

impl Mixer<Listed> {
    /// Lists the tensors of the mixer of the layer at `place`, which finds its own among
    /// `variants`; `None` of a layer without one.
    pub fn listed(place: &LayerPlace<'_>, variants: &MixerVariants) -> Option<Self> {
        Some(match &place.spec().mixer {
            types::Mixer::Attention(spec) => {
                Self::Attention(Attention::listed(place, spec, &variants.attention))
            }
            types::Mixer::GatedDelta(spec) => {
                Self::GatedDelta(GatedDelta::listed(place, spec, &variants.gated_delta))
            }
            types::Mixer::LatentAttention(spec) => {
                Self::LatentAttention(LatentAttention::listed(place, spec, &variants.latent))
            }
            types::Mixer::Mamba2(spec) => {
                Self::Mamba2(Mamba2::listed(place, spec, &variants.mamba2))
            }
            types::Mixer::ShortConvolution(spec) => {
                Self::ShortConvolution(ShortConvolution::listed(place, spec, &variants.short))
            }
            types::Mixer::None => return None,
        })
    }

    /// Returns the collective that the mixer of `layer` runs over every token, before its output
    /// projection: sums of squares, where ranks have parts of what is normed together.
    pub fn collective(layer: &LayerSpec, topology: Topology, axis: Axis) -> Option<CollectiveStep> {
        let squares = match &layer.mixer {
            types::Mixer::Attention(spec) => Attention::squares(spec),
            types::Mixer::Mamba2(spec) => Mamba2::squares(spec, topology),
            types::Mixer::GatedDelta(_)
            | types::Mixer::LatentAttention(_)
            | types::Mixer::ShortConvolution(_)
            | types::Mixer::None => None,
        };
        squares.and_then(|width| sum_of_heads(width, topology, axis))
    }

    /// Returns the sum behind the output projection of the mixer of `layer`, in a model of width
    /// `hidden`.
    pub fn output_collective(
        layer: &LayerSpec,
        hidden: usize,
        topology: Topology,
        axis: Axis,
    ) -> Option<CollectiveStep> {
        match &layer.mixer {
            types::Mixer::None => None,
            _ => sum_of_heads(hidden, topology, axis),
        }
    }

    /// Returns the number of columns that the second half of `layer` reads on one rank, in a model
    /// of width `hidden`: those that the mixer leaves, or the normed stream where there is none.
    pub fn columns(layer: &LayerSpec, hidden: usize, shard: &Shard) -> usize {
        match &layer.mixer {
            types::Mixer::Attention(spec) => Attention::shape(spec, shard).out_width(),
            types::Mixer::GatedDelta(spec) => delta_shape(spec, shard).value_width(),
            types::Mixer::LatentAttention(spec) => {
                let shape = LatentAttention::shape(spec, shard);
                shape.heads * shape.value
            }
            types::Mixer::Mamba2(spec) => mamba_shape(spec, shard).value_width(),
            types::Mixer::ShortConvolution(spec) => convolution_shape(spec, shard).channels,
            types::Mixer::None => hidden,
        }
    }
}

impl<F: Form> Mixer<F> {
    /// Returns the projections that adapters may add to.
    pub fn adaptable(&mut self) -> Vec<&mut Linear<F>> {
        match self {
            Self::Attention(attention) => {
                let Attention {
                    qkv, gate, output, ..
                } = attention;
                [Some(qkv), gate.as_mut(), Some(output)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Self::GatedDelta(_)
            | Self::LatentAttention(_)
            | Self::Mamba2(_)
            | Self::ShortConvolution(_) => Vec::new(),
        }
    }

    /// Returns the projection back to the residual stream.
    pub fn output(&self) -> &Linear<F> {
        match self {
            Self::Attention(attention) => &attention.output,
            Self::GatedDelta(delta) => &delta.output,
            Self::LatentAttention(latent) => &latent.output,
            Self::Mamba2(mamba) => &mamba.output,
            Self::ShortConvolution(short) => &short.output,
        }
    }

    /// Returns the columns that [`Self::run`] leaves in `buffers`.
    pub fn mixed<'b, T>(&self, buffers: &'b MixerBuffers<T>) -> &'b T {
        match self {
            Self::Attention(attention) => &buffers.attention[attention.buffers].attended,
            Self::GatedDelta(delta) => &buffers.gated_delta[delta.buffers].mixed,
            Self::LatentAttention(latent) => &buffers.latent[latent.buffers].attended,
            Self::Mamba2(mamba) => &buffers.mamba2[mamba.buffers].mixed,
            Self::ShortConvolution(short) => &buffers.short[short.buffers].mixed,
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
            Self::Mamba2(mamba) => Mixer::Mamba2(mamba.convert(to)?),
            Self::ShortConvolution(short) => Mixer::ShortConvolution(short.convert(to)?),
        })
    }
}

impl<B: Backend> Mixer<B> {
    /// Reads `input`, `[n, inputs]`, updates `cache`, and leaves the [`Self::mixed`] columns in
    /// `buffers`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] for a mixer that the device does
    /// not have; [`BackendError::OutOfMemory`] for working memory.
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
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
                delta.run(backend, input.rows, buffers, cache, inputs)
            }
            Self::LatentAttention(latent) => {
                let buffers = &mut buffers.latent[latent.buffers];
                latent.run(backend, context, input.rows, buffers, cache, inputs)
            }
            Self::Mamba2(mamba) => {
                let buffers = &mut buffers.mamba2[mamba.buffers];
                mamba.run(backend, context, input.rows, buffers, cache, inputs)
            }
            Self::ShortConvolution(short) => {
                let buffers = &mut buffers.short[short.buffers];
                short.run(backend, input.rows, buffers, cache, inputs)
            }
        }
    }
}

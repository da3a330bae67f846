//! One transformer layer, as models and draft heads run it.

mod buffers;

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm};
use lockstep_types::{LayerSpec, ModelConfig};

use super::{
    Attention, GatedMlp, Norm,
    attention::rope_tables,
    parts::{Convert, Form, Listed, Tensors},
};
use crate::{CollectiveStep, Shard, Topology, rope_table, split::topology::attention_axis};

pub(crate) use buffers::{LayerBuffers, SecondHalf};

/// One layer, without the norm before its attention.
pub(crate) struct Layer<F: Form> {
    pub attention: Attention<F>,
    /// Between attention and MLP.
    pub post_norm: Norm<F>,
    pub mlp: GatedMlp<F>,
}

/// Where a layer stands in a model, and what a rank takes of it.
#[derive(Clone, Copy)]
pub(crate) struct LayerPlace<'m> {
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Its place among the model's layers, and in the cache.
    pub number: usize,
    /// The beginning of its tensors' names: "model.layers.3".
    pub prefix: &'m str,
    /// Columns of its query, key and value projections.
    pub inputs: usize,
}

impl<'m> LayerPlace<'m> {
    /// The layer's description.
    pub fn spec(&self) -> &'m LayerSpec {
        &self.model.layers[self.number]
    }
}

/// What all layers of a model share on a device.
pub(crate) struct LayerContext<B: Backend> {
    /// The ranks that MLPs are split over.
    pub axis: Axis,
    /// The ranks that attention is split over.
    pub attention_axis: Axis,
    /// Angles of every position served, a table for each of [`rope_tables`].
    pub ropes: Vec<B::Rope>,
}

impl<B: Backend> LayerContext<B> {
    /// For the layers of `model` at positions `0..positions`, over the ranks of `axis`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        axis: Axis,
        model: &ModelConfig,
        positions: usize,
    ) -> Result<Self, BackendError> {
        let tables = rope_tables(model).into_iter();
        let tables = tables.map(|(rope, width)| rope_table(&rope, width, positions));
        Ok(Self {
            axis,
            attention_axis: attention_axis(axis),
            ropes: tables
                .map(|table| backend.load_rope(table))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// All of `values`, each once, in the order of their first places.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut each = Vec::new();
    for value in values {
        if !each.contains(&value) {
            each.push(value);
        }
    }
    each
}

/// The place of `value` among `all`, which have it.
pub(super) fn place_of<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter()
        .position(|other| other == value)
        .unwrap_or_default()
}

impl Layer<Listed> {
    /// The tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let norm = format!("{}.post_attention_layernorm.weight", place.prefix);
        Self {
            attention: Attention::listed(place),
            post_norm: Norm::listed(norm, place.model.hidden_size, place.spec().rms_norm_eps),
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
            post_norm: self.post_norm.convert(to)?,
            mlp: self.mlp.convert(to)?,
        })
    }
}

impl<B: Backend> Layer<B> {
    /// From the attention output to the residual stream behind the layer, and
    /// that normed with `next`.
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
            buffers.residual,
            buffers.delta,
            self.post_norm.operand(),
            buffers.normed,
        )?;
        self.mlp.run(backend, context.axis, buffers, next)
    }
}

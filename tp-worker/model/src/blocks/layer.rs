//! One transformer layer of a model or of a draft head.

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
    /// Norm between attention and MLP.
    pub post_norm: Norm<F>,
    pub mlp: GatedMlp<F>,
}

/// Place of a layer in a model, and the rank's shard.
#[derive(Clone, Copy)]
pub(crate) struct LayerPlace<'m> {
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Number of the layer in the model and in the cache, from 0.
    pub number: usize,
    /// Prefix of the names of the layer's tensors. Example: "model.layers.3".
    pub prefix: &'m str,
    /// Columns of the query, key and value projections.
    pub inputs: usize,
}

impl<'m> LayerPlace<'m> {
    /// The layer's description.
    pub fn spec(&self) -> &'m LayerSpec {
        &self.model.layers[self.number]
    }
}

/// State on a device that all layers of a model share.
pub(crate) struct LayerContext<B: Backend> {
    /// The ranks that MLPs are split over.
    pub axis: Axis,
    /// The ranks that attention is split over.
    pub attention_axis: Axis,
    /// Rotary angles of every served position; one table for each of [`rope_tables`].
    pub ropes: Vec<B::Rope>,
}

impl<B: Backend> LayerContext<B> {
    /// Creates the context for layers of `model` at positions `0..positions`, split over the
    /// ranks of `axis`.
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

/// Returns each distinct value of `values` once, in the order of first occurrence.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut each = Vec::new();
    for value in values {
        if !each.contains(&value) {
            each.push(value);
        }
    }
    each
}

/// Returns the index of `value` in `all`, which must contain it.
pub(super) fn place_of<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter()
        .position(|other| other == value)
        .unwrap_or_default()
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
            buffers.residual,
            buffers.delta,
            self.post_norm.operand(),
            buffers.normed,
        )?;
        self.mlp.run(backend, context.axis, buffers, next)
    }
}

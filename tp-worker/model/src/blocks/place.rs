//! Place of a layer in its model, and the state that all layers share.

use lockstep_backend::{AdaptedLinear, Axis, Backend, BackendError};
use lockstep_types::{LayerSpec, ModelConfig};

use super::rope::{rope_table, rope_tables};
use crate::{Shard, split::topology::attention_axis};

/// Place of a layer in a model, and the rank's shard.
#[derive(Clone, Copy)]
pub(crate) struct LayerPlace<'m> {
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Number of the layer in the model, from 0.
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

    /// Name of a tensor of the layer, below the layer's prefix.
    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
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
    /// Adapters of each projection that may have some, in the order of
    /// [`super::Linear::adapted`]; empty if the model has no room for adapters.
    pub adapters: Vec<AdaptedLinear<B::Matrix>>,
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
            adapters: Vec::new(),
        })
    }
}

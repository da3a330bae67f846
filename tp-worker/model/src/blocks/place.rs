//! A layer's place in its model, and what it shares with the others.

use lockstep_backend::{Axis, Backend, BackendError};
use lockstep_types::{LayerSpec, ModelConfig};

use super::rope::{rope_table, rope_tables};
use crate::{Shard, split::topology::attention_axis};

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

//! Place of a layer in its model, and the state that all layers share.

use lockstep_backend::{Axis, Backend, BackendError};
use lockstep_types::{KvGroup, LayerSpec, ModelConfig, RopeConfig};

use super::rope::{rope_table, rope_tables};
use super::widths::AttentionWidths;
use crate::{Shard, split::topology::attention_axis};

/// Place of a layer in a model, and the rank's shard.
#[derive(Clone, Copy)]
pub(crate) struct LayerPlace<'m> {
    pub model: &'m ModelConfig,
    pub shard: &'m Shard,
    /// Variants among which the layer finds its own.
    pub variants: &'m Variants,
    /// Number of the layer in the model, from 0.
    pub number: usize,
    /// Prefix of the names of the layer's tensors. Example: "model.layers.3".
    pub prefix: &'m str,
    /// Columns of the query, key and value projections.
    pub inputs: usize,
}

/// Distinct shapes of a model's layers on one rank. Layers of one shape share buffers and
/// rotary tables. The lists are made once for a model, not once for each layer.
pub(crate) struct Variants {
    /// Groups of layers with equal caches.
    pub caches: Vec<KvGroup>,
    /// Widths of attention's buffers, as [`super::attention_widths`] lists them.
    pub attention: Vec<AttentionWidths>,
    /// Rotary tables, as [`rope_tables`] lists them.
    pub ropes: Vec<(RopeConfig, usize)>,
    /// Widths of gated MLPs, as [`super::gated_mlp_widths`] lists them.
    pub gated_mlps: Vec<usize>,
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

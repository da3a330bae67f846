//! Shapes of recurrent layers on a rank, and the places of layers among a model's states.

use lockstep_backend::{DeltaShape, StatesShape};
use lockstep_types::{GatedDeltaSpec, Mixer, ModelConfig, StateLimits};

use super::distinct::distinct;
use crate::Shard;

/// Returns the distinct shapes of the recurrent layers of a model on one rank.
pub(crate) fn delta_shapes(model: &ModelConfig, shard: &Shard) -> Vec<DeltaShape> {
    let deltas = model.gated_deltas();
    distinct(deltas.map(|delta| delta_shape(delta, shard)))
}

/// Returns the shape of the heads in `shard`.
pub(crate) fn delta_shape(spec: &GatedDeltaSpec, shard: &Shard) -> DeltaShape {
    DeltaShape::of(spec, shard.topology.attention.size)
}

/// Place of a recurrent layer among the states of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StatePlace {
    /// Number of the layer's shape among the distinct ones.
    pub states: usize,
    /// Number of the layer among those of its shape.
    pub layer: usize,
}

impl StatePlace {
    /// Returns the place of layer `number` of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard, number: usize) -> Self {
        let Some(own) = shape_of(model, shard, number) else {
            return Self::default();
        };
        let before = (0..number).filter(|before| shape_of(model, shard, *before) == Some(own));
        let shapes = delta_shapes(model, shard);
        Self {
            states: shapes
                .iter()
                .position(|shape| *shape == own)
                .unwrap_or_default(),
            layer: before.count(),
        }
    }
}

/// Returns the shape of layer `number`, if it is recurrent.
fn shape_of(model: &ModelConfig, shard: &Shard, number: usize) -> Option<DeltaShape> {
    match &model.layers[number].mixer {
        Mixer::GatedDelta(delta) => Some(delta_shape(delta, shard)),
        Mixer::Attention(_) | Mixer::LatentAttention(_) => None,
    }
}

/// Returns the shapes of the states and records that a shard of `model` needs: one for each
/// distinct shape of its recurrent layers.
pub(crate) fn state_shapes(
    model: &ModelConfig,
    shard: &Shard,
    limits: StateLimits,
) -> Vec<StatesShape> {
    let numbers = 0..model.layers.len();
    let layers = |own| {
        let layers = numbers.clone().map(|number| shape_of(model, shard, number));
        layers.filter(|shape| *shape == Some(own)).count()
    };
    let shapes = delta_shapes(model, shard).into_iter();
    let shape = |delta| StatesShape {
        layers: layers(delta),
        delta,
        limits,
    };
    shapes.map(shape).collect()
}

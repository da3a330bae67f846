//! Rules of recurrent layers on a rank, and the places of layers among a model's states.

use std::ops::Range;

use lockstep_backend::{ConvolutionShape, DeltaShape, Recurrence, StatesShape};
use lockstep_types::{
    GatedDeltaSpec, Mamba2Spec, Mixer, ModelConfig, ShortConvolutionSpec, StateLimits,
};

use super::{
    distinct::distinct,
    parts::{TensorRows, VectorPart},
};
use crate::Shard;

/// Returns the distinct rules of the recurrent layers of a model on one rank.
pub(crate) fn recurrences(model: &ModelConfig, shard: &Shard) -> Vec<Recurrence> {
    let layers = model.layers.iter();
    distinct(layers.filter_map(|layer| recurrence(&layer.mixer, shard)))
}

/// Returns the rule of a layer with `mixer` on the rank of `shard`, if it is recurrent.
fn recurrence(mixer: &Mixer, shard: &Shard) -> Option<Recurrence> {
    Some(match mixer {
        Mixer::Attention(_) | Mixer::LatentAttention(_) | Mixer::None => return None,
        Mixer::GatedDelta(delta) => Recurrence::Delta(delta_shape(delta, shard)),
        Mixer::Mamba2(mamba) => Recurrence::Mamba2(mamba_shape(mamba, shard)),
        Mixer::ShortConvolution(short) => Recurrence::Convolution(convolution_shape(short, shard)),
    })
}

/// Returns the shape of the heads of a Gated DeltaNet in `shard`.
pub(crate) fn delta_shape(spec: &GatedDeltaSpec, shard: &Shard) -> DeltaShape {
    DeltaShape::of(spec, shard.topology.attention.size)
}

/// Returns the shape of the heads of a Mamba-2 block in `shard`.
pub(crate) fn mamba_shape(spec: &Mamba2Spec, shard: &Shard) -> DeltaShape {
    let size = shard.topology.attention.size;
    DeltaShape {
        key_heads: spec.groups_per_rank(size),
        value_heads: spec.heads / size,
        key_dim: spec.state_dim,
        value_dim: spec.head_dim,
        taps: spec.taps,
    }
}

/// Returns the channels of a short convolution in `shard`.
pub(crate) fn convolution_shape(spec: &ShortConvolutionSpec, shard: &Shard) -> ConvolutionShape {
    ConvolutionShape {
        channels: spec.channels / shard.topology.attention.size,
        taps: spec.taps,
    }
}

/// Place of a recurrent layer among the states of its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StatePlace {
    /// Number of the layer's rule among the distinct ones.
    pub states: usize,
    /// Number of the layer among those of its rule.
    pub layer: usize,
}

impl StatePlace {
    /// Returns the place of layer `number` of `model` on the rank of `shard`.
    pub fn of(model: &ModelConfig, shard: &Shard, number: usize) -> Self {
        let Some(own) = rule_of(model, shard, number) else {
            return Self::default();
        };
        let before = (0..number).filter(|before| rule_of(model, shard, *before) == Some(own));
        let rules = recurrences(model, shard);
        Self {
            states: rules
                .iter()
                .position(|rule| *rule == own)
                .unwrap_or_default(),
            layer: before.count(),
        }
    }
}

/// Returns the rule of layer `number`, if it is recurrent.
fn rule_of(model: &ModelConfig, shard: &Shard, number: usize) -> Option<Recurrence> {
    recurrence(&model.layers[number].mixer, shard)
}

/// Returns the shapes of the states and records that a shard of `model` needs: one for each
/// distinct rule of its recurrent layers.
pub(crate) fn state_shapes(
    model: &ModelConfig,
    shard: &Shard,
    limits: StateLimits,
) -> Vec<StatesShape> {
    let numbers = 0..model.layers.len();
    let layers = |own| {
        let layers = numbers.clone().map(|number| rule_of(model, shard, number));
        layers.filter(|rule| *rule == Some(own)).count()
    };
    let rules = recurrences(model, shard).into_iter();
    let shape = |recurrence| StatesShape {
        layers: layers(recurrence),
        recurrence,
        limits,
    };
    rules.map(shape).collect()
}

/// Returns the taps of a convolution's `channels` as a device has them: all first taps first. The
/// checkpoint's tensor `name` has the `taps` of each of its `rows` channels in turn.
pub(crate) fn convolution_part(
    name: &str,
    rows: usize,
    taps: usize,
    channels: &[Range<usize>],
) -> VectorPart {
    let tap = |tap: usize| {
        let of_tap = move |own: &Range<usize>| own.start * taps + tap..own.end * taps;
        channels.iter().map(of_tap)
    };
    VectorPart {
        tensors: vec![TensorRows {
            step: taps,
            ..TensorRows::of(
                format!("{name}.weight"),
                rows * taps,
                (0..taps).flat_map(tap).collect(),
            )
        }],
        plus_one: false,
        stack: rows,
        ones: 0,
        over: 1.0,
    }
}

/// Returns the biases of a convolution's `channels`.
pub(crate) fn bias_part(name: &str, rows: usize, channels: Vec<Range<usize>>) -> VectorPart {
    VectorPart {
        tensors: vec![TensorRows::of(format!("{name}.bias"), rows, channels)],
        ..VectorPart::ones(0)
    }
}

/// Returns a range in units of `by` elements.
pub(crate) fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// Returns a range behind `by` elements.
pub(crate) fn moved(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

//! Rotary angles of positions.

use std::f64::consts::PI;

use lockstep_backend::RopeTable;
use lockstep_types::{AttentionSpec, ModelConfig, RopeConfig, RopeScaling};

use super::distinct::distinct;

/// Returns cosines and sines for positions `0..positions` (Su et al., arXiv:2104.09864),
/// computed in f64 and rounded once.
pub fn rope_table(rope: &RopeConfig, head_dim: usize, positions: usize) -> RopeTable {
    let frequencies = inverse_frequencies(rope, head_dim);
    let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
    let (cos, sin) = angles
        .map(|angle| (angle.cos() as f32, angle.sin() as f32))
        .unzip();
    RopeTable {
        half: head_dim / 2,
        cos,
        sin,
    }
}

/// Returns the distinct rotary tables of a model's layers: frequencies and the width of a
/// head.
pub(crate) fn rope_tables(model: &ModelConfig) -> Vec<(RopeConfig, usize)> {
    distinct(model.attentions().map(rope_of))
}

pub(super) fn rope_of(attention: &AttentionSpec) -> (RopeConfig, usize) {
    (attention.rope.clone(), attention.head_dim)
}

/// Returns the radians per position of each pair, after scaling.
fn inverse_frequencies(rope: &RopeConfig, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2)
        .map(|pair| rope.theta.powf(-2.0 * pair as f64 / head_dim as f64))
        .map(|frequency| scaled(rope.scaling, frequency))
        .collect()
}

/// Scales one frequency like transformers' `modeling_rope_utils`.
fn scaled(scaling: RopeScaling, frequency: f64) -> f64 {
    match scaling {
        RopeScaling::Default => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            let turns = original_max_position as f64 * frequency / (2.0 * PI);
            if turns < low_freq_factor {
                frequency / factor
            } else if turns >= high_freq_factor {
                frequency
            } else {
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests;

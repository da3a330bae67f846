//! Rotary angles of positions.

use std::{f64::consts::PI, iter::repeat_n};

use lockstep_backend::RopeTable;
use lockstep_types::{
    AttentionSpec, LatentAttentionSpec, LongRope, Mixer, ModelConfig, QueryScaling, RopeConfig,
    RopeScaling,
};

use super::distinct::distinct;

/// Returns cosines and sines for positions `0..positions` (Su et al., arXiv:2104.09864),
/// computed in f64 and rounded once. Pairs of columns that are not rotated come last, with the
/// cosine one.
pub fn rope_table(rope: &RopeConfig, head_dim: usize, positions: usize) -> RopeTable {
    let frequencies = inverse_frequencies(rope, rope.rotated.unwrap_or(head_dim));
    let grown = match (rope.scaling, &rope.long) {
        (
            RopeScaling::Yarn {
                attention_factor, ..
            },
            _,
        ) => attention_factor,
        (_, Some(long)) => long.attention_factor,
        (_, None) => 1.0,
    };
    let turn = |angle: f64| ((grown * angle.cos()) as f32, (grown * angle.sin()) as f32);
    let kept = head_dim / 2 - frequencies.len();
    let rows = (0..positions).flat_map(|position| {
        let turns = frequencies.iter().map(move |f| turn(position as f64 * f));
        turns.chain(repeat_n((1.0, 0.0), kept))
    });
    let (cos, sin) = rows.unzip();
    RopeTable {
        half: head_dim / 2,
        cos,
        sin,
        queries: query_factors(rope, positions),
    }
}

/// Returns the factor of the queries at each position; none if all are one.
fn query_factors(rope: &RopeConfig, positions: usize) -> Vec<f32> {
    let Some(QueryScaling {
        beta,
        original_max_position,
    }) = rope.query_scaling
    else {
        return Vec::new();
    };
    let steps = |position: usize| (position / original_max_position) as f64;
    let factor = |position| (1.0 + beta * steps(position).ln_1p()) as f32;
    (0..positions).map(factor).collect()
}

/// Returns the distinct rotary tables of a model's layers: frequencies and the width of a
/// head.
pub(crate) fn rope_tables(model: &ModelConfig) -> Vec<(RopeConfig, usize)> {
    distinct(model.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(rope_of(attention)),
        Mixer::LatentAttention(latent) => Some(rope_of_latent(latent)),
        Mixer::GatedDelta(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) | Mixer::None => None,
    }))
}

/// Returns the rotation of the rotated columns of a latent attention, and their number.
pub(super) fn rope_of_latent(latent: &LatentAttentionSpec) -> (RopeConfig, usize) {
    (latent.rope.clone(), latent.rotated)
}

pub(super) fn rope_of(attention: &AttentionSpec) -> (RopeConfig, usize) {
    (attention.rope.clone(), attention.head_dim)
}

/// Returns the radians per position of each pair of `width` rotated columns, after scaling.
fn inverse_frequencies(rope: &RopeConfig, width: usize) -> Vec<f64> {
    (0..width / 2)
        .map(|pair| {
            let frequency = rope.theta.powf(-2.0 * pair as f64 / width as f64);
            let divisors = rope.long.as_ref().map(LongRope::divisors);
            let frequency = frequency / divisors.map_or(1.0, |divisors| divisors[pair]);
            match rope.scaling {
                RopeScaling::Yarn { .. } => {
                    let kept = kept_by_yarn(rope, width, pair);
                    (1.0 - kept) * scaled(rope.scaling, frequency) + kept * frequency
                }
                RopeScaling::Proportional { pairs } if pair >= pairs => 0.0,
                scaling => scaled(scaling, frequency),
            }
        })
        .collect()
}

/// Returns the part of pair `pair` that YaRN does not scale: one for pairs that turn often within
/// the original length, zero for those that turn seldom, and a ramp between.
fn kept_by_yarn(rope: &RopeConfig, width: usize, pair: usize) -> f64 {
    let RopeScaling::Yarn {
        beta_fast,
        beta_slow,
        original_max_position,
        truncate,
        ..
    } = rope.scaling
    else {
        return 1.0;
    };
    // The pair that turns so often, as a broken number.
    let pair_of = |turns: f64| {
        let length = original_max_position as f64 / (2.0 * PI * turns);
        width as f64 * length.ln() / (2.0 * rope.theta.ln())
    };
    let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(width as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
}

/// Scales one frequency like transformers' `modeling_rope_utils`.
fn scaled(scaling: RopeScaling, frequency: f64) -> f64 {
    match scaling {
        RopeScaling::Default | RopeScaling::Proportional { .. } => frequency,
        RopeScaling::Unrotated => 0.0,
        RopeScaling::Linear { factor } | RopeScaling::Yarn { factor, .. } => frequency / factor,
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

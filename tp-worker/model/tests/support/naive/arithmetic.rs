//! Plain arithmetic of the naive backend.

use lockstep_backend::{CheckpointDtype, Row};
use lockstep_types::{Activation, ExpertGate, ExpertGroups, GroupWorth, RouterWeights, Routing};

pub fn element(bytes: &[u8], dtype: CheckpointDtype, at: usize) -> f32 {
    match dtype {
        CheckpointDtype::F32 => f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap()),
        CheckpointDtype::Bf16 => {
            half::bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
        }
        CheckpointDtype::F16 => {
            half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
        }
    }
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = (mean + eps).sqrt().recip();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

pub fn layer_normed(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    let centered: Vec<f32> = x.iter().map(|v| v - mean).collect();
    let normed = normed(&centered, weight, eps);
    normed.iter().zip(bias).map(|(v, b)| v + b).collect()
}

pub fn activated(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let root = std::f32::consts::FRAC_2_PI.sqrt();
            0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::ReluSquared => x.max(0.0).powi(2),
    }
}

pub fn gated(function: ExpertGate, gate: f32, up: f32) -> f32 {
    match function {
        ExpertGate::Silu => activated(Activation::Silu, gate) * up,
        ExpertGate::GeluTanh => activated(Activation::GeluTanh, gate) * up,
        ExpertGate::Clamped { limit, alpha } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
        ExpertGate::Ungated(activation) => activated(activation, up),
    }
}

/// Returns the chosen experts of a row by ascending number, each with its weight.
pub fn chosen(
    scores: &[f32],
    active: usize,
    routing: Routing,
    correction: Option<&[f32]>,
) -> Vec<(usize, f32)> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores.iter().map(|score| (score - max).exp()).sum();
    let weights = scores.iter().map(|score| match routing.weights {
        RouterWeights::Softmax => (score - max).exp() / total,
        RouterWeights::Sigmoid => 1.0 / (1.0 + (-score).exp()),
    });
    let mut all: Vec<_> = weights.enumerate().collect();
    let worth =
        |(expert, weight): &(usize, f32)| weight + correction.map_or(0.0, |own| own[*expert]);
    let worths: Vec<f32> = all.iter().map(worth).collect();
    let masked = masked(worths, routing.groups);
    let worth = |(expert, _): &(usize, f32)| masked[*expert];
    // The sort is stable: of equal weights, lower numbers stay in front.
    all.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    all.truncate(active);
    all.sort_by_key(|(expert, _)| *expert);
    let sum: f32 = all.iter().map(|(_, weight)| weight).sum();
    let divisor = if routing.renormalized { sum } else { 1.0 };
    all.iter_mut()
        .for_each(|(_, weight)| *weight = *weight / divisor * routing.factor);
    all
}

/// Masks experts of groups that are not chosen.
fn masked(mut worths: Vec<f32>, groups: Option<ExpertGroups>) -> Vec<f32> {
    let Some(groups) = groups else { return worths };
    let size = worths.len() / groups.count;
    let value = |experts: &[f32]| {
        let mut sorted = experts.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        match groups.worth {
            GroupWorth::Largest => sorted[0],
            GroupWorth::TwoLargest => sorted[0] + sorted[1],
        }
    };
    let mut all: Vec<_> = worths.chunks(size).map(value).enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (group, _) in &all[groups.chosen..] {
        worths[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
    }
    worths
}

/// Returns the positions that new token `new` of `row` sees.
pub fn seen(row: &Row, new: usize, masks: &[u64]) -> Vec<usize> {
    let visible = |other: &usize| match row.mask {
        None => *other <= new,
        Some(start) => {
            let words = start as usize + new * row.mask_words();
            masks[words + other / 64] >> (other % 64) & 1 == 1
        }
    };
    let cached = row.kv_len as usize;
    let among_new = (0..row.q_len as usize).filter(visible);
    (0..cached).chain(among_new.map(|n| cached + n)).collect()
}

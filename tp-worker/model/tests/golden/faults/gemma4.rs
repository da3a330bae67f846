//! Mechanisms of Gemma 4's small and sparse models, left out.

use std::num::NonZeroUsize;

use lockstep_types::{AttentionSpec, ModelConfig, QkNorm};

use super::{Left, each};

pub(super) const FAULTS: [Left; 4] = [
    ("gemma4_shared", "last layer of a kind", |model| {
        // The first layer that slides instead of the second.
        readers(model, |layer| {
            layer.kv_of = layer.kv_of.map(|read| if read == 1 { 0 } else { read });
        });
    }),
    ("gemma4_shared", "windows of readers", |model| {
        readers(model, |layer| {
            let window = layer.window.map(NonZeroUsize::get);
            layer.window = window.and_then(|window| NonZeroUsize::new(window + 1));
        });
    }),
    ("gemma4_shared", "norms of readers' queries", |model| {
        readers(model, |layer| layer.qk_norm = QkNorm::None);
    }),
    ("gemma4_shared", "rotation of readers", |model| {
        readers(model, |layer| layer.rope.theta *= 2.0);
    }),
];

/// Changes each attention that reads the cache of another layer.
fn readers(model: &mut ModelConfig, change: impl Fn(&mut AttentionSpec)) {
    each(model, |layer| {
        if layer.kv_of.is_some() {
            change(layer);
        }
    });
}

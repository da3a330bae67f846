//! Mechanisms of Gemma 4's small and sparse models, left out.

use std::num::NonZeroUsize;

use lockstep_types::{Activation, AttentionSpec, ModelConfig, PerLayerEmbeddings, QkNorm};

use super::{Left, each};

pub(super) const FAULTS: [Left; 8] = [
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
    (
        "gemma4_per_layer",
        "factor of a layer's embeddings",
        |model| {
            per_layer(model, |own| own.factor = 1.0);
        },
    ),
    (
        "gemma4_per_layer",
        "activation of a layer's gate",
        |model| {
            per_layer(model, |own| own.activation = Activation::Silu);
        },
    ),
    // The epsilon of a norm has the square of this root.
    (
        "gemma4_per_layer",
        "root of the width below projections",
        |model| {
            model.multipliers.residual *= 8.0;
            model.multipliers.embedding *= 8.0;
            model
                .layers
                .iter_mut()
                .for_each(|layer| layer.rms_norm_eps *= 64.0);
        },
    ),
    (
        "gemma4_per_layer",
        "norm behind a layer's embeddings",
        |model| {
            model.names.per_layer.output_norm = model.names.mlp_output_norm.clone();
        },
    ),
];

fn per_layer(model: &mut ModelConfig, change: impl Fn(&mut PerLayerEmbeddings)) {
    change(model.per_layer.as_mut().unwrap());
}

/// Changes each attention that reads the cache of another layer.
fn readers(model: &mut ModelConfig, change: impl Fn(&mut AttentionSpec)) {
    each(model, |layer| {
        if layer.kv_of.is_some() {
            change(layer);
        }
    });
}

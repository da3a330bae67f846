//! Mechanisms of Gemma 4's small and sparse models, left out.

use std::mem::swap;
use std::num::NonZeroUsize;

use lockstep_types::{
    Activation, AttentionSpec, ExpertGate, Mlp, ModelConfig, ParallelMlpNames, PerLayerEmbeddings,
    QkNorm,
};

use super::{Left, each, mixtures, silu};

pub(super) const FAULTS: [Left; 16] = [
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
    ("gemma4_moe", "GELU of experts", |model| {
        mixtures(model, |experts| experts.gate = ExpertGate::Silu);
    }),
    ("gemma4_moe", "GELU of MLPs beside experts", silu),
    ("gemma4_moe", "factors of experts", |model| {
        mixtures(model, |experts| experts.scales = None);
    }),
    ("gemma4_moe", "last expert", |model| {
        mixtures(model, |experts| experts.active -= 1);
    }),
    ("gemma4_moe", "norm that experts read", |model| {
        // That of the MLP.
        let read = model.names.mlp_norm.clone();
        beside(model, |names| names.experts_norm.clone_from(&read));
    }),
    ("gemma4_moe", "norms of both outputs", |model| {
        beside(model, |names| {
            swap(&mut names.gated_output_norm, &mut names.experts_output_norm);
        });
    }),
    ("gemma4_moe", "router's own norm", |model| {
        let read = format!("{}.weight", model.names.mlp_norm);
        beside(model, |names| names.router_scale.clone_from(&read));
    }),
    ("gemma4_moe", "norm of the sum", |model| {
        model.names.mlp_output_norm = "post_feedforward_layernorm_1".to_owned();
    }),
];

/// Changes the names of tensors around experts that stand beside MLPs.
fn beside(model: &mut ModelConfig, change: impl Fn(&mut ParallelMlpNames)) {
    for layer in &mut model.layers {
        if let Mlp::Parallel(both) = &mut layer.mlp {
            change(&mut both.names);
        }
    }
}

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

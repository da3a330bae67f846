//! Families with layers of Mamba-2.

use lockstep_types::{Mamba2Spec, Mixer, Mlp, ModelConfig, RopeConfig};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::{llama, with};

const GRANITE: &str = "GraniteMoeHybridForCausalLM";

/// A small Granite 4 with four layers and experts.
fn granite(own: &Value) -> Value {
    let sizes = json!({"architectures": [GRANITE], "model_type": "(absent)",
        "num_hidden_layers": 4, "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_head": 16, "mamba_d_state": 32,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256, "num_local_experts": 8,
        "num_experts_per_tok": 2, "intermediate_size": 28, "shared_intermediate_size": 56,
        "embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
        "logits_scaling": 6, "position_embedding_type": "nope", "init_method": "mup",
        "normalization_function": "rmsnorm"});
    with(with(llama(), &sizes), own)
}

fn mamba(model: &ModelConfig) -> &Mamba2Spec {
    match &model.layers[0].mixer {
        Mixer::Mamba2(mamba) => mamba,
        _ => panic!("no Mamba-2"),
    }
}

#[test]
fn granite_has_mamba_attention_and_a_shared_expert() {
    let model = good(&granite(&json!({})));
    let recurrent = model
        .layers
        .iter()
        .map(lockstep_types::LayerSpec::has_state);
    assert_eq!(recurrent.collect::<Vec<_>>(), [true, true, false, true]);
    let own = mamba(&model);
    assert_eq!((own.heads, own.head_dim, own.groups), (8, 16, 2));
    assert_eq!((own.state_dim, own.taps), (32, 4));
    assert!(own.convolution_bias && !own.bias);
    assert_eq!(own.names.a_log, "mamba.A_log");
    for attention in model.attentions() {
        assert_eq!(attention.rope, RopeConfig::unrotated());
        assert_eq!(attention.scale, 0.015625);
    }
    assert_eq!(model.multipliers.residual, 0.22);
    for layer in &model.layers {
        let Mlp::Experts(experts) = &layer.mlp else {
            panic!("no experts");
        };
        assert_eq!((experts.count, experts.shared_count()), (8, 2));
    }
    assert_eq!(model.common_heads(), 8);
}

#[test]
fn granite_without_experts_has_the_shared_mlp_alone() {
    let model = good(&granite(
        &json!({"num_local_experts": 0, "num_experts_per_tok": 0}),
    ));
    for layer in &model.layers {
        let Mlp::Gated(gated) = &layer.mlp else {
            panic!("experts");
        };
        assert_eq!(gated.width, 56);
        assert_eq!(gated.names.gate, gated.names.up);
    }
    // Published models without Mamba-2 have rotations.
    let own = json!({"layer_types": vec!["attention"; 4], "position_embedding_type": "rope",
        "num_local_experts": 0});
    let model = good(&granite(&own));
    assert!(!model.has_states());
    assert!(
        model
            .attentions()
            .all(|own| own.rope != RopeConfig::unrotated())
    );
}

/// transformers 5 names kinds of layers otherwise, and writes an infinity in its own way.
#[test]
fn both_dialects_of_granite_read_to_the_same_model() {
    let kinds = [
        "linear_attention",
        "linear_attention",
        "full_attention",
        "linear_attention",
    ];
    let newer = json!({"layer_types": kinds, "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "mamba_d_head": "auto", "position_embedding_type": null});
    assert_eq!(good(&granite(&newer)), good(&granite(&json!({}))));
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    for (own, said) in [
        (json!({"mamba_n_groups": 3}), "`mamba_n_groups`"),
        (json!({"mamba_d_state": 20}), "`mamba_d_state`"),
        (
            json!({"mamba_n_heads": 16, "mamba_d_head": 8}),
            "`mamba_d_head`",
        ),
        (json!({"mamba_d_head": 32}), "`mamba_expand`"),
        (json!({"mamba_d_conv": 1}), "`mamba_d_conv`"),
        (
            json!({"time_step_limit": [0.001, 0.1]}),
            "`time_step_limit`",
        ),
        (
            json!({"position_embedding_type": "learned"}),
            "`position_embedding_type`",
        ),
        (
            json!({"shared_intermediate_size": 40}),
            "`shared_intermediate_size`",
        ),
        (json!({"layer_types": vec!["mamba"; 4]}), "`layer_types`"),
        (json!({"layer_types": "(absent)"}), "`layer_types`"),
        (
            json!({"normalization_function": "layernorm"}),
            "`normalization_function`",
        ),
        (json!({"another_key": 3}), "`another_key`"),
    ] {
        let error = load(&granite(&own)).expect_err("refused");
        assert!(error.contains(said), "{own}: {error}");
    }
    let falcon = json!({"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"});
    let error = load(&with(llama(), &falcon)).expect_err("refused");
    assert!(error.contains("FalconH1ForCausalLM"), "{error}");
}

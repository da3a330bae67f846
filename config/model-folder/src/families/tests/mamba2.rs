//! Families with layers of Mamba-2.

use lockstep_types::{Activation, ExpertGate, Mamba2Spec, Mixer, Mlp, ModelConfig, RopeConfig};
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

const NEMOTRON: &str = "NemotronHForCausalLM";

/// A small Nemotron-H with five layers, as published files describe it.
fn nemotron(own: &Value) -> Value {
    let sizes = json!({"architectures": [NEMOTRON], "model_type": "(absent)",
        "rms_norm_eps": "(absent)", "hidden_act": "(absent)", "layer_norm_epsilon": 1e-4,
        "norm_eps": 1e-4, "num_hidden_layers": 5, "hybrid_override_pattern": "MM*-E",
        "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 4,
        "ssm_state_size": 32, "conv_kernel": 4, "chunk_size": 128, "expand": 2,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "use_bias": false,
        "use_conv_bias": true, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 28, "moe_shared_expert_intermediate_size": 56, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "num_logits_to_keep": 1, "rescale_prenorm_residual": true, "residual_in_fp32": false,
        "time_step_min": 0.001, "time_step_rank": 256, "time_step_max": 0.1, "time_step_floor": 0.0001,
        "use_mamba_kernels": true, "hidden_dropout": 0.0, "sliding_window": null});
    with(with(llama(), &sizes), own)
}

#[test]
fn nemotron_has_one_block_in_each_layer() {
    let model = good(&nemotron(&json!({})));
    let kinds: Vec<_> = model
        .layers
        .iter()
        .map(|layer| match (&layer.mixer, &layer.mlp) {
            (Mixer::Mamba2(own), Mlp::None) => {
                assert_eq!((own.heads, own.groups, own.state_dim), (8, 4, 32));
                assert_eq!(own.names.skip, "mixer.D");
                "mamba"
            }
            (Mixer::Attention(own), Mlp::None) => {
                assert_eq!(own.rope, RopeConfig::unrotated());
                assert_eq!(own.names.output, "mixer.o_proj");
                "attention"
            }
            (Mixer::None, Mlp::Plain(own)) => {
                assert_eq!((own.width, own.activation), (96, Activation::ReluSquared));
                "mlp"
            }
            (Mixer::None, Mlp::Experts(own)) => {
                assert_eq!(own.gate, ExpertGate::Ungated(Activation::ReluSquared));
                assert_eq!((own.count, own.shared_count()), (8, 2));
                assert!(own.routing.corrected && own.routing.factor == 2.5);
                // Two matrices of each expert and of the shared one, and the router.
                assert_eq!(layer.mlp.rows(), 2 * 8 * 28 + 8 + 2 * 56);
                "experts"
            }
            _ => panic!("another layer"),
        })
        .collect();
    assert_eq!(kinds, ["mamba", "mamba", "attention", "mlp", "experts"]);
    assert_eq!(model.names.layer(3), "backbone.layers.3");
    assert_eq!(model.rms_norm_eps, 1e-4);
    let kinds = [
        "linear_attention",
        "linear_attention",
        "full_attention",
        "mlp",
        "moe",
    ];
    let newer = json!({"hybrid_override_pattern": "(absent)", "num_hidden_layers": "(absent)",
        "layers_block_type": kinds, "norm_eps": "(absent)"});
    assert_eq!(good(&nemotron(&newer)), model);
}

#[test]
fn what_nemotron_is_not_served_with_is_refused_by_name() {
    for (own, said) in [
        (
            json!({"hybrid_override_pattern": "MM*-X"}),
            "`hybrid_override_pattern`",
        ),
        (
            json!({"hybrid_override_pattern": "MM*-"}),
            "`hybrid_override_pattern`",
        ),
        (
            json!({"hybrid_override_pattern": "MMM-E"}),
            "`hybrid_override_pattern`",
        ),
        (json!({"moe_latent_size": 32}), "`moe_latent_size`"),
        (json!({"n_group": 2}), "`n_group`"),
        (
            json!({"moe_shared_expert_intermediate_size": 40}),
            "`moe_shared_expert",
        ),
        (json!({"mlp_hidden_act": "silu"}), "`mlp_hidden_act`"),
        (json!({"mlp_bias": true}), "`mlp_bias`"),
        (json!({"mamba_proj_bias": true}), "`mamba_proj_bias`"),
        (json!({"norm_eps": 1e-6}), "`norm_eps`"),
        (json!({"rms_norm_eps": 1e-6}), "`rms_norm_eps`"),
        (json!({"n_shared_experts": 0}), "`n_shared_experts`"),
        // States of 2⁶⁸ elements, with few parameters.
        (
            json!({"hidden_size": 32, "mamba_num_heads": 1024, "mamba_head_dim": 1 << 28,
                "ssm_state_size": (1_u32 << 31) - 16, "n_groups": 1}),
            "`hidden_size`",
        ),
        (json!({"another_key": 3}), "`another_key`"),
    ] {
        let error = load(&nemotron(&own)).expect_err("refused");
        assert!(error.contains(said), "{own}: {error}");
    }
}

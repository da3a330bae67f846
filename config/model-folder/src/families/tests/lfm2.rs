//! LFM2: layers of short convolutions, in files of several ages.

use lockstep_types::{ExpertTensors, Mixer, Mlp, ModelConfig, QkNorm, RouterWeights};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::{llama, with};

const DENSE: &str = "Lfm2ForCausalLM";
const EXPERTS: &str = "Lfm2MoeForCausalLM";

/// A small model of `class` with four layers.
fn small(class: &str, own: &Value) -> Value {
    let sizes = json!({"architectures": [class], "model_type": "(absent)", "num_hidden_layers": 4,
        "rms_norm_eps": "(absent)", "norm_eps": 1e-4, "intermediate_size": 210,
        "layer_types": ["conv", "conv", "full_attention", "conv"]});
    let experts = json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 28,
        "num_dense_layers": 1});
    let sizes = match class {
        DENSE => sizes,
        _ => with(sizes, &experts),
    };
    with(with(llama(), &sizes), own)
}

fn width(model: &ModelConfig) -> usize {
    model.layers[0].mlp.width()
}

#[test]
fn layers_are_convolutions_or_attention() {
    for class in [DENSE, EXPERTS] {
        let model = good(&small(class, &json!({})));
        let convolutions = model.layers.iter().map(|layer| match &layer.mixer {
            Mixer::ShortConvolution(short) => Some((short.channels, short.taps, short.bias)),
            Mixer::Attention(attention) => {
                assert_eq!(attention.qk_norm, QkNorm::PerHead);
                assert_eq!(attention.names.output, "self_attn.out_proj");
                None
            }
            _ => panic!("{class}: another mixer"),
        });
        let convolutions: Vec<_> = convolutions.collect();
        let short = Some((64, 3, false));
        assert_eq!(convolutions, [short, short, None, short]);
        assert!(model.has_states() && model.rms_norm_eps == 1e-4);
        assert_eq!(model.names.norm, "model.embedding_norm");
        assert_eq!(model.common_heads(), 8);
        let biased = good(&small(
            class,
            &json!({"conv_bias": true, "conv_L_cache": 5}),
        ));
        assert!(matches!(&biased.layers[0].mixer,
            Mixer::ShortConvolution(short) if short.bias && short.taps == 5));
    }
}

/// The first published files list layers with attention, and have other keys for sizes.
#[test]
fn older_files_read_to_the_same_model() {
    let older = json!({"layer_types": "(absent)", "full_attn_idxs": [2],
        "intermediate_size": "(absent)", "block_ff_dim": 210, "block_dim": 64, "conv_dim": 64,
        "conv_dim_out": 64, "num_heads": 8, "theta": 500_000.0, "block_norm_eps": 1e-4,
        "block_use_swiglu": true, "use_pos_enc": true, "block_mlp_init_scale": 1.0,
        "block_out_init_scale": 1.0, "block_use_xavier_init": true,
        "conv_use_xavier_init": true, "tie_embedding": true});
    assert_eq!(good(&small(DENSE, &older)), good(&small(DENSE, &json!({}))));
    let rope = json!({"rope_type": "default", "rope_theta": 5e6});
    let newer = json!({"rope_theta": "(absent)", "rope_parameters": rope});
    let both = with(newer.clone(), &json!({"theta": 5e6}));
    assert_eq!(good(&small(DENSE, &both)), good(&small(DENSE, &newer)));
}

#[test]
fn the_width_of_mlps_is_adjusted_as_the_file_says() {
    for (own, expected) in [
        (json!({}), 256),
        (json!({"block_multiple_of": 12}), 144),
        (
            json!({"block_multiple_of": 12, "block_ffn_dim_multiplier": 0.9}),
            132,
        ),
        (json!({"block_ffn_dim_multiplier": null}), 140),
        (json!({"block_auto_adjust_ff_dim": false}), 210),
        (
            json!({"block_auto_adjust_ff_dim": false, "block_ff_dim": 99}),
            99,
        ),
    ] {
        assert_eq!(width(&good(&small(DENSE, &own))), expected, "{own}");
    }
    assert_eq!(width(&good(&small(EXPERTS, &json!({})))), 210);
}

#[test]
fn experts_stand_behind_dense_layers() {
    let model = good(&small(EXPERTS, &json!({"routed_scaling_factor": 1.5})));
    assert!(matches!(model.layers[0].mlp, Mlp::Gated(_)));
    for layer in &model.layers[1..] {
        let Mlp::Experts(experts) = &layer.mlp else {
            panic!("no experts");
        };
        let routing = experts.routing;
        assert_eq!(routing.weights, RouterWeights::Sigmoid);
        assert!(routing.renormalized && routing.corrected && routing.factor == 1.5);
        assert_eq!(experts.names.correction, "feed_forward.expert_bias");
        assert!(matches!(
            experts.names.experts,
            ExpertTensors::Single { .. }
        ));
    }
    let plain = json!({"use_expert_bias": false, "norm_topk_prob": false});
    let model = good(&small(EXPERTS, &plain));
    assert!(matches!(&model.layers[3].mlp, Mlp::Experts(experts)
        if !experts.routing.corrected && !experts.routing.renormalized));
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    for (class, own, said) in [
        (DENSE, json!({"conv_L_cache": 9}), "`conv_L_cache`"),
        (DENSE, json!({"conv_dim": 128}), "`conv_dim`"),
        (DENSE, json!({"num_heads": 4}), "`num_heads`"),
        (DENSE, json!({"theta": 10_000.0}), "`theta`"),
        (DENSE, json!({"tie_embedding": false}), "`tie_embedding`"),
        (
            DENSE,
            json!({"block_use_swiglu": false}),
            "`block_use_swiglu`",
        ),
        (DENSE, json!({"full_attn_idxs": [1]}), "`full_attn_idxs`"),
        (DENSE, json!({"full_attn_idxs": [4]}), "`full_attn_idxs`"),
        (DENSE, json!({"rms_norm_eps": 1e-3}), "`rms_norm_eps`"),
        (
            DENSE,
            json!({"block_ffn_dim_multiplier": 1e300}),
            "`block_ffn_dim_multiplier`",
        ),
        (
            DENSE,
            json!({"block_ffn_dim_multiplier": 1e-9}),
            "`block_ffn_dim_multiplier`",
        ),
        (
            DENSE,
            json!({"layer_types": vec!["conv"; 4]}),
            "`layer_types`",
        ),
        (
            EXPERTS,
            json!({"layer_types": ["conv", "mamba", "full_attention", "conv"]}),
            "mamba",
        ),
        (EXPERTS, json!({"another_key": true}), "`another_key`"),
    ] {
        let error = load(&small(class, &own)).expect_err("refused");
        assert!(error.contains(said), "{class} {own}: {error}");
    }
}

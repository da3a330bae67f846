//! Fixed factors, kinds of norms and activations, and keys that nobody knows.

use lockstep_types::{Activation, Mlp, Multipliers, NormKind, Norms};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::{llama, with};

/// A small model of `class`, with Llama's keys and `own`.
pub(super) fn small(class: &str, own: &Value) -> Value {
    let named = with(
        llama(),
        &json!({"architectures": [class], "model_type": "(absent)"}),
    );
    with(named, own)
}

#[test]
fn granite_has_four_factors() {
    let granite = |own| small("GraniteForCausalLM", &own);
    let own = json!({"embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 8.0, "attention_multiplier": 0.015625});
    let model = good(&granite(own));
    let expected = Multipliers {
        embedding: 12.0,
        residual: 0.22,
        logits: 8.0,
        logit_softcap: None,
    };
    assert_eq!(model.multipliers, expected);
    assert!(model.attentions().all(|layer| layer.scale == 0.015_625));
    let plain = good(&granite(json!({})));
    assert_eq!(plain.multipliers, Multipliers::default());
    // The class has the factor one, not the root of the heads' width.
    assert!(plain.attentions().all(|layer| layer.scale == 1.0));
    let error = load(&granite(json!({"embedding_multiplier": 0}))).expect_err("refused");
    assert!(error.contains("`embedding_multiplier`"), "{error}");
}

#[test]
fn unknown_keys_of_new_families_are_refused() {
    for class in [
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Glm4MoeForCausalLM",
        "GraniteForCausalLM",
        "Ministral3ForCausalLM",
        "MixtralForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SmolLM3ForCausalLM",
        "Starcoder2ForCausalLM",
    ] {
        let gelu = class.starts_with("Gemma") || class.starts_with("Star");
        let own = match gelu {
            true => json!({"hidden_act": "gelu_pytorch_tanh", "sliding_window": 64}),
            false => json!({"sliding_window": 64}),
        };
        let config = small(class, &own);
        good(&config);
        let odd = with(config.clone(), &json!({"key_multiplier": 0.5}));
        let error = load(&odd).expect_err("refused");
        assert!(
            error.contains("`key_multiplier` is 0.5"),
            "{class}: {error}"
        );
        let off = with(config.clone(), &json!({"key_multiplier": null}));
        good(&off);
        // Published copies have these keys of their tools.
        let copied = json!({"unsloth_fixed": true, "unsloth_version": "2024.9"});
        good(&with(config.clone(), &copied));
        let other = if gelu { "silu" } else { "gelu" };
        let error = load(&with(config, &json!({"hidden_act": other}))).expect_err("refused");
        assert!(error.contains("`hidden_act`"), "{class}: {error}");
    }
}

#[test]
fn keys_of_qwen3_coder_are_known() {
    let coder = |norms: bool| {
        let own = json!({"use_qk_norm": norms, "qkv_bias": false,
            "shared_expert_intermediate_size": 0});
        load(&small("Qwen3MoeForCausalLM", &own))
    };
    assert!(coder(true).is_ok());
    let error = coder(false).expect_err("refused");
    assert!(error.contains("`use_qk_norm`"), "{error}");
}

fn gemma(class: &str, own: &Value) -> Value {
    let gelu = json!({"hidden_act": "(absent)", "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 32, "sliding_window": 64, "tie_word_embeddings": "(absent)"});
    with(small(class, &gelu), own)
}

#[test]
fn gemma_scales_embeddings_as_its_weights_are_rounded() {
    for (dtype, factor) in [
        ("bfloat16", 50.5),
        ("float16", 50.59375),
        ("float32", 2560_f32.sqrt()),
    ] {
        let own = json!({"hidden_size": 2560, "torch_dtype": dtype});
        let model = good(&gemma("Gemma3ForCausalLM", &own));
        assert_eq!(model.multipliers.embedding, factor, "{dtype}");
        assert_eq!(model.norm, NormKind::RmsUnitOffset);
        assert!(model.tie_word_embeddings);
    }
}

#[test]
fn gemma_2_bounds_scores_and_logits_and_gemma_3_logits_alone() {
    let model = good(&gemma("Gemma2ForCausalLM", &json!({})));
    assert_eq!(model.multipliers.logit_softcap, Some(30.0));
    for layer in &model.layers {
        assert_eq!(layer.attention().unwrap().softcap, Some(50.0));
        assert_eq!(layer.attention().unwrap().scale, 0.0625);
        assert_eq!(layer.norms, Norms::Around);
        assert!(matches!(&layer.mlp, Mlp::Gated(mlp) if mlp.activation == Activation::GeluTanh));
    }
    let own = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null,
        "query_pre_attn_scalar": 64});
    let free = good(&gemma("Gemma2ForCausalLM", &own));
    assert_eq!(free.multipliers.logit_softcap, None);
    assert!(
        free.attentions()
            .all(|layer| layer.softcap.is_none() && layer.scale == 0.125)
    );
    let own = json!({"final_logit_softcapping": 20.0});
    let third = good(&gemma("Gemma3ForCausalLM", &own));
    assert_eq!(third.multipliers.logit_softcap, Some(20.0));
    for (key, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("use_bidirectional_attention", json!(true)),
    ] {
        let error = load(&gemma("Gemma3ForCausalLM", &json!({key: value}))).expect_err("refused");
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn the_windows_older_key_must_agree() {
    for class in ["Gemma2ForCausalLM", "Gemma3ForCausalLM"] {
        let sized = |size: Value| gemma(class, &json!({"sliding_window_size": size}));
        assert_eq!(good(&sized(json!(64))), good(&gemma(class, &json!({}))));
        let error = load(&sized(json!(32))).expect_err("refused");
        assert!(error.contains("`sliding_window_size` is 32"), "{error}");
    }
}

#[test]
fn starcoder2_has_layer_norms_and_two_projections() {
    let own = json!({"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": "(absent)",
        "norm_epsilon": 1e-3, "attention_bias": "(absent)", "mlp_bias": "(absent)"});
    let config = small("Starcoder2ForCausalLM", &own);
    let model = good(&config);
    assert_eq!((model.norm, model.rms_norm_eps), (NormKind::Layer, 1e-3));
    for layer in &model.layers {
        assert!(layer.attention().unwrap().qkv_bias && layer.attention().unwrap().output_bias);
        assert!(matches!(&layer.mlp, Mlp::Plain(mlp) if mlp.bias && mlp.width == 96));
        assert_eq!(layer.rms_norm_eps, 1e-3);
    }
    let both = with(config.clone(), &json!({"rms_norm_eps": 1e-6}));
    assert_eq!(good(&both), model);
    let bare = good(&with(config.clone(), &json!({"use_bias": false})));
    assert!(
        bare.layers
            .iter()
            .all(|layer| !layer.attention().unwrap().qkv_bias)
    );
    for (key, value) in [("norm_type", "rms_norm"), ("mlp_type", "gated")] {
        let error = load(&with(config.clone(), &json!({key: value}))).expect_err("refused");
        assert!(error.contains(&format!("`{key}`")), "{error}");
    }
}

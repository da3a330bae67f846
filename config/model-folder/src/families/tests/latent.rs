//! DeepSeek V2 and V3, Kimi-K2, GLM-4.7-Flash and Mistral 4, in the form of public files, of
//! transformers 5, and of the class alone.

use lockstep_types::{
    ExpertGroups, ExpertTensors, ExpertsSpec, GroupWorth, KvSpec, LatentAttentionSpec, Mixer, Mlp,
    ModelConfig, QueryScaling, RopeScaling, RouterWeights,
};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::with;

/// A small DeepSeek V3, with the keys of the public files.
fn v3(own: &Value) -> Value {
    let config = json!({
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "aux_loss_alpha": 0.001,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "ep_size": 1,
        "first_k_dense_replace": 2,
        "hidden_act": "silu",
        "hidden_size": 96,
        "initializer_range": 0.02,
        "intermediate_size": 200,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163_840,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 48,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 32,
        "n_shared_experts": 1,
        "norm_topk_prob": true,
        "num_attention_heads": 16,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 16,
        "num_nextn_predict_layers": 1,
    });
    // A longer list is beyond the macro.
    let rest = json!({
        "pretraining_tp": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
            "quant_method": "fp8", "weight_block_size": [128, 128]},
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "seq_aux": true,
        "tie_word_embeddings": false,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1",
        "use_cache": true,
        "v_head_dim": 128,
        "vocab_size": 100,
    });
    with(with(config, &rest), own)
}

/// A small model of another class.
fn of_class(class: &str, own: &Value) -> Value {
    let absent = [
        "first_k_dense_replace",
        "n_group",
        "topk_group",
        "topk_method",
        "scoring_func",
    ];
    let absent = absent.into_iter().chain([
        "num_nextn_predict_layers",
        "quantization_config",
        "rope_scaling",
        "seq_aux",
        "ep_size",
        "aux_loss_alpha",
        "moe_layer_freq",
        "routed_scaling_factor",
        "norm_topk_prob",
    ]);
    let absent: serde_json::Map<String, Value> = absent
        .map(|key| (key.to_owned(), "(absent)".into()))
        .collect();
    let config = v3(&Value::Object(absent));
    let named = with(
        config,
        &json!({"architectures": [class], "model_type": "(absent)"}),
    );
    with(named, own)
}

fn attention(model: &ModelConfig) -> &LatentAttentionSpec {
    let mut all = model.latent_attentions();
    let first = all.next().expect("latent attention");
    assert!(all.all(|other| other == first));
    first
}

/// Experts of the last layer, and the number of dense layers.
fn experts(model: &ModelConfig) -> (&ExpertsSpec, usize) {
    let dense = model
        .layers
        .iter()
        .filter(|layer| matches!(layer.mlp, Mlp::Gated(_)));
    match model.layers.last().map(|layer| &layer.mlp) {
        Some(Mlp::Experts(experts)) => (experts, dense.count()),
        _ => panic!("the last layer has experts"),
    }
}

#[test]
fn deepseek_v3_is_read_from_both_dialects() {
    let public = good(&v3(&json!({})));
    let own = attention(&public);
    assert_eq!((own.heads, own.nope, own.rotated), (16, 128, 64));
    assert_eq!(
        (own.latent, own.value, own.query_latent),
        (512, 128, Some(1536))
    );
    let growth = 0.1 * 40f64.ln() + 1.0;
    assert_eq!(own.scale, (growth * growth / 192f64.sqrt()) as f32);
    assert!(own.interleaved && !own.bias);
    assert_eq!(own.norm_eps, 1e-6);
    let RopeScaling::Yarn {
        factor,
        attention_factor,
        ..
    } = own.rope.scaling
    else {
        panic!("YaRN");
    };
    assert_eq!((factor, attention_factor), (40.0, 1.0));
    let cache = KvSpec::Latent {
        latent: 512,
        rotated: 64,
    };
    assert_eq!(
        (public.kv_groups().len(), public.kv_groups()[0].spec),
        (1, cache)
    );
    let (experts, dense) = experts(&public);
    assert_eq!(
        (experts.count, experts.active, experts.width, dense),
        (32, 8, 48, 2)
    );
    assert_eq!(experts.shared.as_ref().map(|shared| shared.width), Some(48));
    let groups = ExpertGroups {
        count: 8,
        chosen: 4,
        worth: GroupWorth::TwoLargest,
    };
    assert_eq!(experts.routing.groups, Some(groups));
    assert_eq!(experts.routing.weights, RouterWeights::Sigmoid);
    assert!(experts.routing.renormalized && experts.routing.corrected);
    assert_eq!(experts.routing.factor, 2.5);
    let modern = v3(
        &json!({"rope_scaling": "(absent)", "rope_theta": "(absent)",
        "torch_dtype": "(absent)", "dtype": "bfloat16", "qk_head_dim": 192, "head_dim": 64,
        "rope_interleave": true, "scoring_func": "(absent)", "topk_method": "(absent)",
        "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 40.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
            "rope_theta": 10000.0, "rope_type": "yarn"}}),
    );
    assert_eq!(good(&modern), public);
    let halves = good(&v3(&json!({"rope_interleave": false})));
    assert!(!attention(&halves).interleaved);
    let plain = good(&v3(&json!({"rope_scaling": null})));
    assert_eq!(attention(&plain).scale, (1.0 / 192f64.sqrt()) as f32);
}

#[test]
fn deepseek_v2_chooses_groups_by_their_largest_expert() {
    let own = json!({"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
        "scoring_func": "softmax", "norm_topk_prob": false, "first_k_dense_replace": 1,
        "n_routed_experts": 16, "num_experts_per_tok": 6, "routed_scaling_factor": 16.0,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}});
    let model = good(&of_class("DeepseekV2ForCausalLM", &own));
    let growth = 0.0707 * 40f64.ln() + 1.0;
    assert_eq!(
        attention(&model).scale,
        (growth * growth / 192f64.sqrt()) as f32
    );
    let (experts, dense) = experts(&model);
    assert_eq!(dense, 1);
    let groups = ExpertGroups {
        count: 4,
        chosen: 2,
        worth: GroupWorth::Largest,
    };
    assert_eq!(experts.routing.groups, Some(groups));
    assert_eq!(experts.routing.weights, RouterWeights::Softmax);
    assert!(!experts.routing.renormalized && !experts.routing.corrected);
    assert_eq!(experts.routing.factor, 16.0);
}

/// V2-Lite has no latent of queries, and no groups that matter.
#[test]
fn deepseek_v2_lite_makes_queries_of_the_input() {
    let own = json!({"q_lora_rank": null, "n_group": 1, "topk_group": 1, "topk_method": "greedy"});
    let model = good(&of_class("DeepseekV2ForCausalLM", &own));
    assert_eq!(attention(&model).query_latent, None);
    assert_eq!(experts(&model).0.routing.groups, None);
    // A number of the class is not a missing one.
    let of_class = of_class("DeepseekV2ForCausalLM", &json!({"q_lora_rank": "(absent)"}));
    assert_eq!(attention(&good(&of_class)).query_latent, Some(1536));
}

#[test]
fn glm_flash_says_in_two_ways_which_layers_are_dense() {
    let class = "Glm4MoeLiteForCausalLM";
    for (own, dense) in [
        (json!({}), 1),
        (json!({"first_k_dense_replace": 2}), 2),
        (
            json!({"mlp_layer_types": ["dense", "dense", "dense", "sparse"]}),
            3,
        ),
        (
            json!({"first_k_dense_replace": 1,
                "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}),
            1,
        ),
    ] {
        let model = good(&of_class(class, &own));
        assert_eq!(experts(&model).1, dense, "{own}");
        assert_eq!(experts(&model).0.routing.factor, 1.8);
    }
    for own in [
        json!({"mlp_layer_types": ["dense", "sparse"]}),
        json!({"mlp_layer_types": ["dense", "other", "sparse", "sparse"]}),
        json!({"first_k_dense_replace": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}),
    ] {
        let error = load(&of_class(class, &own)).expect_err("refused");
        assert!(error.contains("`mlp_layer_types`"), "{error}");
    }
}

#[test]
fn mistral_4_has_queries_that_grow_and_stacked_experts() {
    let class = "Mistral4ForCausalLM";
    let model = good(&of_class(class, &json!({"norm_topk_prob": true})));
    let own = attention(&model);
    let growth = 0.1 * 128f64.ln() + 1.0;
    assert_eq!(own.scale, (growth * growth / 192f64.sqrt()) as f32);
    let grown = QueryScaling {
        beta: 0.1,
        original_max_position: 8192,
    };
    assert_eq!(own.rope.query_scaling, Some(grown));
    let (experts, dense) = experts(&model);
    assert_eq!(dense, 0);
    assert_eq!(experts.routing.weights, RouterWeights::Softmax);
    assert!(experts.routing.renormalized && experts.routing.groups.is_none());
    assert!(matches!(
        experts.names.experts,
        ExpertTensors::Stacked { .. }
    ));
    // The part of a head that is rotated is said twice.
    let rope = |factor: f64| {
        json!({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
            "partial_rotary_factor": factor}})
    };
    let third = good(&of_class(class, &rope(1.0 / 3.0)));
    assert_eq!(attention(&third).rope.scaling, RopeScaling::Default);
    let error = load(&of_class(class, &rope(0.5))).expect_err("refused");
    assert!(
        error.contains("`rope_parameters.partial_rotary_factor`"),
        "{error}"
    );
}

/// Text models inside of Kimi-K2.5 and of Mistral 3.
#[test]
fn wrapped_text_models_are_served() {
    let text = |config: &Value, kind: &str| {
        let own = json!({"model_type": kind, "architectures": "(absent)"});
        with(config.clone(), &own)
    };
    let deepseek = v3(&json!({"n_group": 1, "topk_group": 1, "quantization_config": "(absent)"}));
    let mistral = of_class("Mistral4ForCausalLM", &json!({}));
    for (class, inner, kind) in [
        ("KimiK25ForConditionalGeneration", &deepseek, "kimi_k2"),
        ("KimiK25ForConditionalGeneration", &deepseek, "deepseek_v3"),
        ("Mistral3ForConditionalGeneration", &mistral, "mistral4"),
    ] {
        let outer = json!({"architectures": [class], "vision_config": {"hidden_size": 8},
            "text_config": text(inner, kind)});
        let (outer, alone) = (good(&outer), good(inner));
        assert_eq!(outer.layers, alone.layers, "{class}");
        assert!(
            outer
                .layers
                .iter()
                .all(|layer| matches!(layer.mixer, Mixer::LatentAttention(_)))
        );
    }
}

#[test]
fn what_is_not_served_is_named_by_its_key() {
    let v2 = |own: Value| of_class("DeepseekV2ForCausalLM", &own);
    for (config, key) in [
        (
            v3(&json!({"num_key_value_heads": 4})),
            "`num_key_value_heads` is 4",
        ),
        (
            v3(&json!({"num_attention_heads": 1_000_000, "num_key_value_heads": null})),
            "`num_attention_heads`",
        ),
        (
            v3(&json!({"qk_rope_head_dim": 63})),
            "`qk_rope_head_dim` is 63",
        ),
        (v3(&json!({"kv_lora_rank": 0})), "`kv_lora_rank` is 0"),
        (v3(&json!({"n_group": 5})), "`n_group` is 5"),
        (v3(&json!({"n_group": 32})), "`n_group` is 32"),
        (v3(&json!({"topk_group": 9})), "`topk_group` is 9"),
        (v3(&json!({"topk_group": 1})), "`topk_group` is 1"),
        (v3(&json!({"scoring_func": "softmax"})), "`scoring_func`"),
        (v3(&json!({"topk_method": "greedy"})), "`topk_method`"),
        (v3(&json!({"moe_layer_freq": 2})), "`moe_layer_freq`"),
        (v3(&json!({"mlp_bias": true})), "`mlp_bias`"),
        (v3(&json!({"hidden_act": "gelu"})), "`hidden_act`"),
        (v3(&json!({"index_topk": 2048})), "`index_topk`"),
        (v2(json!({"topk_method": "noaux_tc"})), "`topk_method`"),
        (v2(json!({"norm_topk_prob": true})), "`norm_topk_prob`"),
        (v2(json!({"rope_interleave": true})), "`rope_interleave`"),
        (
            of_class(
                "Mistral4ForCausalLM",
                &json!({"rope_scaling": {"rope_type": "linear",
                "factor": 2.0, "llama_4_scaling_beta": 0.1}}),
            ),
            "`rope_parameters`",
        ),
    ] {
        let error = load(&config).expect_err(key);
        assert!(error.contains(key), "{key}: {error}");
    }
}

//! gpt-oss, in the form of public files, of transformers 5, and of the class alone.

use lockstep_types::{
    CheckpointFormat, ExpertGate, ExpertTensors, Mlp, ModelConfig, RopeScaling, Routing,
};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::with;

const CLASS: &str = "GptOssForCausalLM";

/// A small model, with the keys of the public files.
fn public(own: &Value) -> Value {
    let config = json!({
        "architectures": [CLASS],
        "attention_bias": true,
        "attention_dropout": 0.0,
        "eos_token_id": 2,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 131_072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": false,
        "pad_token_id": 1,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                "model.embed_tokens", "lm_head"],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": false,
        },
        "rope_theta": 150_000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": false,
        "transformers_version": "4.55.0.dev0",
        "use_cache": true,
        "vocab_size": 100,
    });
    with(config, own)
}

/// Checks all that differs from other families.
fn check(model: &ModelConfig) {
    let windows = model
        .attentions()
        .map(|layer| layer.window.map(usize::from));
    assert_eq!(windows.collect::<Vec<_>>(), [Some(128), None, Some(128)]);
    for layer in &model.layers {
        let attention = layer.attention().unwrap();
        assert!(attention.sinks && attention.qkv_bias && attention.output_bias);
        assert_eq!((attention.heads, attention.kv_heads), (64, 8));
        assert_eq!((attention.head_dim, attention.scale), (64, 0.125));
        assert_eq!(attention.rope.theta, 150_000.0);
        let expected = RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position: 4096,
            attention_factor: 0.1 * 32f64.ln() + 1.0,
            truncate: false,
        };
        assert_eq!(attention.rope.scaling, expected);
        let Mlp::Experts(experts) = &layer.mlp else {
            panic!("all layers have experts");
        };
        assert_eq!(
            (experts.count, experts.active, experts.width),
            (32, 4, 2880)
        );
        let (limit, alpha) = (7.0, 1.702);
        assert_eq!(experts.gate, ExpertGate::Clamped { limit, alpha });
        assert_eq!(experts.routing, Routing::softmax(true));
        assert!(experts.router_bias && experts.shared.is_none());
        assert_eq!(experts.names.router, "mlp.router");
        let expected = ExpertTensors::Interleaved {
            gate_up: "mlp.experts.gate_up_proj".to_owned(),
            down: "mlp.experts.down_proj".to_owned(),
            bias: true,
        };
        assert_eq!(experts.names.experts, expected);
    }
}

#[test]
fn public_files_and_those_of_transformers_read_alike() {
    let model = good(&public(&json!({})));
    assert!(matches!(model.checkpoint, CheckpointFormat::Mxfp4(_)));
    check(&model);
    let rope = json!({"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    let modern = public(&json!({"rope_parameters": rope, "rope_scaling": "(absent)",
        "rope_theta": "(absent)", "quantization_config": "(absent)",
        "initial_context_length": "(absent)", "experts_per_token": "(absent)",
        "dtype": "bfloat16", "swiglu_alpha": 1.702}));
    let model = good(&modern);
    assert_eq!(model.checkpoint, CheckpointFormat::Floats);
    check(&model);
}

/// Whatever a file leaves out is the class's, windows in every second layer among it.
#[test]
fn the_class_fills_what_a_file_leaves_out() {
    let absent = [
        "rope_scaling",
        "rope_theta",
        "layer_types",
        "sliding_window",
        "swiglu_limit",
        "attention_bias",
        "head_dim",
        "num_experts_per_tok",
        "rms_norm_eps",
    ];
    let absent: Value = absent.map(|key| (key, "(absent)")).into_iter().collect();
    check(&good(&public(&absent)));
}

#[test]
fn what_it_does_not_have_is_refused_by_its_key() {
    for (own, key) in [
        (json!({"experts_per_token": 2}), "`experts_per_token` is 2"),
        (
            json!({"initial_context_length": 64}),
            "`initial_context_length` is 64",
        ),
        (json!({"swiglu_limit": 0}), "`swiglu_limit`"),
        (json!({"swiglu_alpha": -1.0}), "`swiglu_alpha`"),
        (json!({"hidden_act": "gelu"}), "`hidden_act`"),
        (json!({"mlp_bias": true}), "`mlp_bias`"),
        (json!({"n_shared_experts": 1}), "`n_shared_experts`"),
        (
            json!({"layer_types": ["full_attention"]}),
            "`layer_types` names 1",
        ),
        (
            json!({"quantization_config": {"quant_method": "mxfp4", "bits": 6}}),
            "bits",
        ),
        (json!({"intermediate_size": 2888}), "groups of 32"),
        (json!({"hidden_size": 2896}), "groups of 32"),
        (
            json!({"num_experts_per_tok": 40, "experts_per_token": 40}),
            "there are 32 experts",
        ),
    ] {
        let error = load(&public(&own)).expect_err("refused");
        assert!(error.contains(key), "{own}: {error}");
    }
    // Another family has no stacks in that form.
    let llama = with(
        crate::testing::llama(),
        &json!({"quantization_config":
        {"quant_method": "mxfp4"}}),
    );
    let error = load(&llama).expect_err("refused");
    assert!(
        error.contains("MXFP4 is served in stacked experts"),
        "{error}"
    );
}

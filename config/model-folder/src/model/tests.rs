use std::num::NonZeroUsize;

use lockstep_types::{
    Activation, AttentionSpec, GatedMlpNames, GatedMlpSpec, LayerSpec, Mixer, Mlp, ModelConfig,
    Norms, QkNorm, RopeConfig, RopeScaling,
};
use serde_json::{Value, json};

use crate::testing::{folder, llama, with};

fn load(changes: &Value) -> Result<ModelConfig, String> {
    crate::load(folder(&with(llama(), changes), None).path()).map_err(|error| error.to_string())
}

fn good(changes: &Value) -> ModelConfig {
    load(changes).unwrap_or_else(|error| panic!("{changes}: {error}"))
}

#[test]
fn a_llama_is_read_whole() {
    let model = good(&json!({}));
    assert_eq!(model.architecture.class_name, "LlamaForCausalLM");
    assert_eq!(model.architecture.model_type, "llama");
    assert_eq!(
        (model.hidden_size, model.layers.len(), model.vocab_size),
        (64, 2, 100)
    );
    assert_eq!(model.layers[0], model.layers[1]);
    assert_eq!(
        model.layers[0],
        LayerSpec {
            mixer: Mixer::Attention(AttentionSpec {
                rope: RopeConfig {
                    query_scaling: None,
                    long: None,
                    rotated: None,
                    theta: 500_000.0,
                    scaling: RopeScaling::Default
                },
                ..AttentionSpec::dense(8, 4, 8)
            }),
            mlp: Mlp::Gated(GatedMlpSpec {
                activation: Activation::Silu,
                width: 96,
                bias: false,
                names: GatedMlpNames::default(),
            }),
            norms: Norms::Before,
            rms_norm_eps: 1e-5,
            scale: 1.0,
        }
    );
    assert_eq!(
        (model.max_position_embeddings, model.rms_norm_eps),
        (512, 1e-5)
    );
    assert!(model.tie_word_embeddings);
    assert_eq!(
        (model.eos_token_ids, model.bos_token_id),
        (vec![2], Some(1))
    );
}

#[test]
fn families_differ_in_what_they_leave_unsaid() {
    let family = |name: &str, more: Value| {
        let base = json!({"architectures": [name], "tie_word_embeddings": "(absent)",
                          "sliding_window": null, "num_key_value_heads": "(absent)"});
        good(&with(base, &more))
    };
    let llama = family(
        "LlamaForCausalLM",
        json!({"attention_bias": true, "mlp_bias": true}),
    );
    let Mlp::Gated(mlp) = &llama.layers[1].mlp else {
        panic!("a Llama has gated MLPs");
    };
    assert!(mlp.bias && !llama.tie_word_embeddings);
    let llama = llama.layers[1].attention().unwrap();
    assert_eq!(llama.kv_heads, 8, "as many as query heads");
    assert!(llama.qkv_bias && llama.output_bias);

    let mistral = family("MistralForCausalLM", json!({}));
    assert_eq!(
        (
            mistral.architecture.model_type.as_str(),
            mistral.layers[0].attention().unwrap().kv_heads
        ),
        ("mistral", 8)
    );

    let wide = json!({"num_attention_heads": 64, "hidden_size": 256});
    let qwen2 = family("Qwen2ForCausalLM", wide.clone());
    let qwen2 = qwen2.layers[0].attention().unwrap();
    assert_eq!((qwen2.kv_heads, qwen2.head_dim), (32, 4));
    assert!(qwen2.qkv_bias && !qwen2.output_bias && qwen2.qk_norm == QkNorm::None);

    let qwen3 = family(
        "Qwen3ForCausalLM",
        with(wide, &json!({"attention_bias": true})),
    );
    let qwen3 = qwen3.layers[0].attention().unwrap();
    assert_eq!(qwen3.head_dim, 128);
    assert!(qwen3.qk_norm == QkNorm::PerHead && qwen3.qkv_bias && qwen3.output_bias);
}

#[test]
fn null_is_absent_and_the_model_type_serves_where_no_class_is_named() {
    let model = good(
        &json!({"architectures": null, "model_type": "qwen3", "head_dim": null,
                             "num_key_value_heads": null, "rms_norm_eps": null}),
    );
    assert_eq!(
        (
            model.architecture.model_type.as_str(),
            model.layers[0].attention().unwrap().kv_heads
        ),
        ("qwen3", 8)
    );
    assert_eq!(model.layers[0].attention().unwrap().head_dim, 8);
    assert_eq!(model.layers[0].rms_norm_eps, 1e-6);
}

#[test]
fn rope_in_the_spellings_of_transformers_4_and_5() {
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 64});
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 64,
    };
    let typed = |more: Value| with(llama3.clone(), &more);
    let table = [
        (
            json!({"rope_theta": "(absent)"}),
            10_000.0,
            RopeScaling::Default,
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}}),
            5e5,
            RopeScaling::Linear { factor: 2.0 },
        ),
        (
            json!({"rope_scaling": {"rope_type": "default"}}),
            5e5,
            RopeScaling::Default,
        ),
        (
            json!({"rope_scaling": typed(json!({"rope_type": "llama3"}))}),
            5e5,
            scaling,
        ),
        (
            json!({"rope_scaling": typed(json!({"type": "llama3"}))}),
            5e5,
            scaling,
        ),
        (
            json!({"rope_theta": "(absent)",
                "rope_parameters": typed(json!({"rope_type": "llama3", "rope_theta": 7.0}))}),
            7.0,
            scaling,
        ),
        (
            json!({"original_max_position_embeddings": 64,
                "rope_scaling": typed(json!({"rope_type": "llama3",
                    "original_max_position_embeddings": "(absent)"}))}),
            5e5,
            scaling,
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}),
            3.0,
            RopeScaling::Default,
        ),
        (
            json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
            5e5,
            RopeScaling::Linear { factor: 4.0 },
        ),
    ];
    for (changes, theta, scaling) in table {
        assert_eq!(
            good(&changes).layers[1].attention().unwrap().rope,
            RopeConfig {
                scaling,
                ..RopeConfig::plain(theta)
            },
            "{changes}"
        );
    }
}

/// Settings that are not served: key and remedy that the error must name.
#[test]
fn what_is_not_served_is_named_with_a_remedy() {
    let table = [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "`architectures`",
            "Qwen3ForCausalLM",
        ),
        (
            json!({"architectures": null, "model_type": "gpt2"}),
            "`model_type`",
            "Qwen3ForCausalLM",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1}}),
            "`rope_scaling.llama_4_scaling_beta` is 0.1",
            "YaRN has no such parameter",
        ),
        (
            json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
            "`rope_scaling.rope_type`",
            "linear",
        ),
        (
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "`rope_parameters.short_factor`",
            "is missing",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "`partial_rotary_factor`",
            "whole head",
        ),
        (
            json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            "`quantization_config.quant_method`",
            "unquantized",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "`hidden_act` is \"gelu\"",
            "silu",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
            "`rope_parameters.partial_rotary_factor`",
            "whole head",
        ),
        (
            json!({"num_local_experts": 8}),
            "`num_local_experts`",
            "dense",
        ),
        (json!({"num_experts": 8}), "`num_experts`", "dense"),
        (
            json!({"num_experts": 0, "n_routed_experts": 8}),
            "`n_routed_experts`",
            "dense",
        ),
        (
            json!({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 64,
                "layer_types": ["full_attention", "sliding_attention"]}),
            "`layer_types`",
            "set `use_sliding_window`",
        ),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": null,
                "use_sliding_window": true,
                "layer_types": ["full_attention", "sliding_attention"]}),
            "`layer_types`",
            "give `sliding_window` its size",
        ),
        (
            json!({"architectures": ["MistralForCausalLM"], "sliding_window": null, "attention_bias": true}),
            "`attention_bias`",
            "remove the key",
        ),
    ];
    for (changes, key, remedy) in table {
        let error = load(&changes).expect_err("not served");
        assert!(
            error.contains(key) && error.contains(remedy),
            "{changes}: {error}"
        );
    }
}

#[test]
fn each_family_has_windows_by_its_own_rule() {
    let types = |first: &str, second: &str| json!([first, second]);
    let (full, sliding) = ("full_attention", "sliding_attention");
    for (class, own, windows) in [
        ("Llama", json!({"sliding_window": 8}), [None, None]),
        ("Mistral", json!({"sliding_window": null}), [None, None]),
        (
            "Mistral",
            json!({"sliding_window": 128}),
            [Some(128), Some(128)],
        ),
        (
            "Mistral",
            json!({"sliding_window": 511}),
            [Some(511), Some(511)],
        ),
        // No text fills the window, which may also be the class's own 4,096.
        ("Mistral", json!({"sliding_window": 512}), [None, None]),
        ("Mistral", json!({}), [None, None]),
        ("Phi3", json!({"sliding_window": 8}), [Some(8), Some(8)]),
        ("Phi3", json!({}), [None, None]),
        ("Qwen2", json!({"sliding_window": 8}), [None, None]),
        (
            "Qwen2",
            json!({"sliding_window": 8, "use_sliding_window": false, "max_window_layers": 0}),
            [None, None],
        ),
        (
            "Qwen2",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2}),
            [None, None],
        ),
        (
            "Qwen2",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1}),
            [None, Some(8)],
        ),
        (
            "Qwen3",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0}),
            [Some(8), Some(8)],
        ),
        (
            "Qwen3",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2,
                   "layer_types": types(sliding, full)}),
            [Some(8), None],
        ),
        (
            "Qwen3",
            json!({"sliding_window": 8, "layer_types": types(full, full)}),
            [None, None],
        ),
    ] {
        let family = json!({"architectures": [format!("{class}ForCausalLM")]});
        let own = with(family, &own);
        let model = good(&own);
        let found: Vec<_> = model.attentions().map(|layer| layer.window).collect();
        assert_eq!(
            found,
            windows.map(|window| window.and_then(NonZeroUsize::new)),
            "{own}"
        );
    }
    for (own, key) in [
        (json!({"sliding_window": 0}), "`sliding_window`"),
        (json!({"sliding_window": -1}), "`sliding_window`"),
        (json!({"sliding_window": "8"}), "`sliding_window`"),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true,
                   "max_window_layers": -1}),
            "`max_window_layers`",
        ),
    ] {
        let family = json!({"architectures": ["MistralForCausalLM"]});
        let error = load(&with(family, &own)).expect_err("damaged");
        assert!(error.contains(key), "{own}: {error}");
    }
}

#[test]
fn damage_is_named_by_its_key() {
    for (changes, key) in [
        (
            json!({"hidden_size": "(absent)"}),
            "`hidden_size` is missing",
        ),
        (json!({"num_hidden_layers": 0}), "`num_hidden_layers`"),
        (json!({"num_attention_heads": -1}), "`num_attention_heads`"),
        (json!({"vocab_size": 1.5}), "`vocab_size`"),
        (json!({"vocab_size": 1e12}), "`vocab_size`"),
        (json!({"intermediate_size": "many"}), "`intermediate_size`"),
        (
            json!({"max_position_embeddings": null}),
            "`max_position_embeddings`",
        ),
        (json!({"num_key_value_heads": 3}), "`num_key_value_heads`"),
        (
            json!({"num_attention_heads": 7, "num_key_value_heads": 7}),
            "`head_dim`",
        ),
        (json!({"head_dim": 7}), "`head_dim`"),
        (json!({"head_dim": 0}), "`head_dim` is 0"),
        (
            json!({"num_key_value_heads": 0}),
            "`num_key_value_heads` is 0",
        ),
        (json!({"rms_norm_eps": -1.0}), "`rms_norm_eps`"),
        (
            json!({"tie_word_embeddings": "yes"}),
            "`tie_word_embeddings`",
        ),
        (json!({"rope_scaling": "linear"}), "`rope_scaling`"),
        (
            json!({"rope_scaling": {"type": "linear"}}),
            "`rope_scaling.factor` is missing",
        ),
        (json!({"rope_scaling": {"type": 3}}), "`rope_scaling.type`"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                                 "original_max_position_embeddings": 64}}),
            "`rope_scaling.high_freq_factor`",
        ),
        (json!({"eos_token_id": "</s>"}), "`eos_token_id`"),
        (json!({"eos_token_id": [2, -1]}), "`eos_token_id`"),
        (json!({"eos_token_id": -2}), "`eos_token_id`"),
        (json!({"bos_token_id": -2}), "`bos_token_id`"),
        (
            json!({"hidden_size": 2_000_000_000, "vocab_size": 2_000_000_000}),
            "`hidden_size`",
        ),
    ] {
        let error = load(&changes).expect_err("damaged");
        assert!(error.contains(key), "{changes}: {error}");
    }
}

#[test]
fn end_tokens_come_from_both_files() {
    let load = |config: Value, generation: Value| {
        let dir = folder(&with(llama(), &config), Some(&generation));
        crate::load(dir.path()).expect("good").eos_token_ids
    };
    assert_eq!(
        load(json!({}), json!({"eos_token_id": [7, 5, 2]})),
        [2, 5, 7]
    );
    assert_eq!(
        load(json!({"eos_token_id": null}), json!({"eos_token_id": 9})),
        [9]
    );
    assert_eq!(load(json!({"eos_token_id": [3, 4]}), json!({})), [3, 4]);
    assert_eq!(
        load(json!({}), json!({"eos_token_id": 100})),
        [2],
        "beyond the vocabulary"
    );
}

#[test]
fn the_begin_token_is_the_first_that_is_named() {
    let load = |config: Value, generation: Value| {
        let dir = folder(&with(llama(), &config), Some(&generation));
        crate::load(dir.path()).expect("good").bos_token_id
    };
    let other = json!({"bos_token_id": 4});
    assert_eq!(load(json!({}), other.clone()), Some(1));
    assert_eq!(load(json!({"bos_token_id": null}), other.clone()), Some(4));
    let beyond = json!({"bos_token_id": 100});
    assert_eq!(load(beyond.clone(), other), Some(4));
    assert_eq!(load(beyond, json!({})), None);
}

/// Python writes numbers that JSON has no words for.
#[test]
fn numbers_that_are_not_finite_harm_their_own_key_alone() {
    let load = |config: &str, generation: &str| {
        let text = with(llama(), &json!({"rope_theta": "(absent)"})).to_string();
        let dir = folder(&json!({}), None);
        let text = text.replacen('{', &format!("{{{config},"), 1);
        std::fs::write(dir.path().join("config.json"), text).expect("written");
        std::fs::write(dir.path().join("generation_config.json"), generation).expect("written");
        crate::load(dir.path()).map_err(|error| error.to_string())
    };
    let unused = r#""attention_dropout": NaN, "id2label": [0.0, Infinity], "top_p": -Infinity"#;
    let generation = r#"{"eos_token_id": 3, "temperature": NaN}"#;
    let model = load(unused, generation).expect("served");
    assert_eq!(model.eos_token_ids, [2, 3]);
    for (config, generation, key) in [
        (
            r#""rope_theta": Infinity"#,
            "{}",
            "`rope_theta` is \"Infinity\"",
        ),
        (r#""head_dim": NaN"#, "{}", "`head_dim` is \"NaN\""),
        (
            r#""quantization_config": NaN"#,
            "{}",
            "`quantization_config`",
        ),
        (
            unused,
            r#"{"eos_token_id": [1, -Infinity]}"#,
            "generation_config.json: `eos_token_id`",
        ),
    ] {
        let error = load(config, generation).expect_err("used");
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn what_says_nothing_is_served() {
    for changes in [
        json!({"quantization_config": {}}),
        json!({"quantization_config": null}),
        json!({"num_experts": 0}),
        json!({"num_local_experts": 0, "n_routed_experts": null}),
    ] {
        good(&changes);
    }
    assert_eq!(good(&json!({"bos_token_id": -1})).bos_token_id, None);
    let model = good(&json!({"eos_token_id": -1}));
    assert!(model.eos_token_ids.is_empty(), "{model:?}");
}

#[test]
fn files_that_are_not_there_or_not_json() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let error = crate::load(dir.path()).expect_err("no file").to_string();
    assert!(error.contains("--model-path"), "{error}");
    for content in ["", "[]", "{\"a\":", "\u{fffd}"] {
        std::fs::write(dir.path().join("config.json"), content).expect("written");
        let error = crate::load(dir.path()).expect_err(content).to_string();
        assert!(error.contains("config.json"), "{error}");
    }
}

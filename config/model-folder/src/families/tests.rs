mod factors;
mod gemma4;
mod gpt_oss;
mod keys;
mod latent;
mod layers;
mod lfm2;
mod long;
mod mamba2;
mod recurrent;

use lockstep_types::{AttentionSpec, ModelConfig, QkNorm, RopeConfig, RopeScaling};
use serde_json::json;

use super::*;
use crate::Described;
use crate::testing::{folder, llama, tensor_names, with};

#[test]
fn all_families_are_named_for_people() {
    let all = served();
    for family in SERVED {
        assert!(all.contains(family.class_name), "{all}");
    }
    assert!(all.starts_with("DeepseekV2ForCausalLM, "), "{all}");
    assert!(
        all.contains(" and Starcoder2ForCausalLM, and text"),
        "{all}"
    );
    assert!(all.contains("LlavaForConditionalGeneration"), "{all}");
}

fn load(config: &Value) -> Result<ModelConfig, String> {
    let dir = folder(config, None);
    let model = crate::load(dir.path()).map_err(|error| error.to_string())?;
    Ok(ModelConfig {
        path: "here".into(),
        ..model
    })
}

fn good(config: &Value) -> ModelConfig {
    load(config).unwrap_or_else(|error| panic!("{config}: {error}"))
}

/// Writes the keys of transformers 4 in the way of transformers 5.
fn modern(hub: &Value, layer_types: &[&str]) -> Value {
    let mut rope = hub["rope_scaling"].clone();
    if rope.is_null() {
        rope = json!({});
    }
    let object = rope.as_object_mut().expect("an object");
    let kind = object.remove("type").unwrap_or_else(|| json!("default"));
    object.entry("rope_type").or_insert(kind);
    object.insert("rope_theta".into(), hub["rope_theta"].clone());
    let absent = json!({"rope_theta": "(absent)", "rope_scaling": "(absent)",
        "torch_dtype": "(absent)", "dtype": hub["torch_dtype"], "rope_parameters": rope});
    let config = with(hub.clone(), &absent);
    match layer_types {
        [] => config,
        types => with(config, &json!({"layer_types": types})),
    }
}

#[test]
fn both_dialects_read_to_the_same_model() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    for class in [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    ] {
        for scaling in [
            Value::Null,
            json!({"type": "linear", "factor": 4.0}),
            json!({"rope_type": "linear", "factor": 4.0}),
            llama3.clone(),
        ] {
            let own = json!({"architectures": [class], "sliding_window": null,
                             "rope_scaling": scaling});
            let hub = with(llama(), &own);
            let expected = good(&hub);
            assert_eq!(good(&modern(&hub, &[])), expected, "{class} {scaling}");
            let types = ["full_attention"; 2];
            assert_eq!(good(&modern(&hub, &types)), expected, "{class} {scaling}");
        }
    }
}

#[test]
fn kinds_of_layers_have_rotations_of_their_own() {
    let rope = json!({
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    let own = json!({"architectures": ["Qwen3ForCausalLM"], "rope_parameters": rope,
        "sliding_window": 64, "use_sliding_window": true,
        "layer_types": ["sliding_attention", "full_attention"]});
    let model = good(&with(llama(), &own));
    let ropes: Vec<_> = model.attentions().map(|layer| layer.rope.clone()).collect();
    let rope = |theta, scaling| RopeConfig {
        scaling,
        ..RopeConfig::plain(theta)
    };
    let linear = RopeScaling::Linear { factor: 8.0 };
    assert_eq!(ropes, [rope(1e4, RopeScaling::Default), rope(1e6, linear)]);
    let both = json!({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "rope_scaling": {"type": "linear", "factor": 8.0}});
    let model = good(&with(llama(), &both));
    let scaled = |layer: &AttentionSpec| layer.rope.scaling == linear;
    assert!(model.attentions().all(scaled));
    for (own, key) in [
        (json!({"layer_types": ["full_attention"]}), "`layer_types`"),
        (json!({"layer_types": "full_attention"}), "`layer_types`"),
        (
            json!({"layer_types": ["full_attention", "linear_attention"]}),
            "linear_attention",
        ),
        (
            json!({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}),
            "`rope_parameters.full_attention` is missing",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
                   "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
            "different rotations",
        ),
        (
            json!({"rope_parameters": {}, "rope_scaling": {"type": "ntk", "factor": 2.0}}),
            "ntk",
        ),
    ] {
        let error = load(&with(llama(), &own)).expect_err("not served");
        assert!(error.contains(key), "{own}: {error}");
    }
}

/// A wrapper's `config.json` around that of a text model.
fn wrapped(class: &str, text: &Value, outer: &Value) -> Value {
    let base = json!({
        "architectures": [class],
        "model_type": "any",
        "text_config": text,
        "vision_config": {"hidden_size": 8, "num_hidden_layers": 3},
        "image_token_index": 99,
        "vision_feature_layer": -2,
    });
    with(base, outer)
}

#[test]
fn a_wrapped_text_model_is_read_like_the_model_alone() {
    for (class, text, family) in [
        ("LlavaForConditionalGeneration", "llama", "LlamaForCausalLM"),
        (
            "LlavaNextForConditionalGeneration",
            "mistral",
            "MistralForCausalLM",
        ),
        (
            "Mistral3ForConditionalGeneration",
            "mistral",
            "MistralForCausalLM",
        ),
        (
            "InternVLForConditionalGeneration",
            "qwen3",
            "Qwen3ForCausalLM",
        ),
        (
            "LlavaOnevisionForConditionalGeneration",
            "qwen2",
            "Qwen2ForCausalLM",
        ),
    ] {
        let own = json!({"architectures": [family], "model_type": text, "sliding_window": null});
        let alone = with(llama(), &own);
        let expected = good(&alone);
        let text = with(alone, &json!({"architectures": "(absent)"}));
        let config = wrapped(class, &text, &json!({}));
        assert_eq!(good(&config), expected);
        let described = Described::of(folder(&config, None).path()).expect("served");
        let [note] = &described.notes[..] else {
            panic!("{:?}", described.notes);
        };
        assert!(note.contains(class) && note.contains("text"), "{note}");
        assert_eq!(
            good(&wrapped(class, &modern(&text, &[]), &json!({}))),
            expected
        );
    }
}

/// Rotary embedding with three axes is plain for text; sizes may stand on either level.
#[test]
fn text_models_of_qwen_vl_are_qwens() {
    let rope = json!({"type": "mrope", "mrope_section": [2, 1, 1]});
    let qwen2 = json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": false,
        "rope_scaling": rope, "sliding_window": 16});
    let flat = with(llama(), &qwen2);
    let alone = good(&with(flat.clone(), &json!({"rope_scaling": null})));
    for (class, text) in [
        ("Qwen2VLForConditionalGeneration", "qwen2_vl_text"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"),
    ] {
        let own = json!({"architectures": [class], "vision_config": {}, "image_token_id": 9});
        let outside = good(&with(flat.clone(), &own));
        let own = json!({"architectures": "(absent)", "model_type": text});
        let inside = good(&wrapped(class, &with(flat.clone(), &own), &json!({})));
        for found in [outside, inside] {
            assert_eq!(found.architecture.class_name, "Qwen2ForCausalLM");
            assert_eq!(found.layers, alone.layers);
            assert_eq!(found.rms_norm_eps, alone.rms_norm_eps);
        }
    }
    let rope = json!({"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 7.0,
        "mrope_interleaved": true});
    let own = json!({"model_type": "qwen3_vl_text", "rope_parameters": rope, "head_dim": 8,
        "rope_theta": "(absent)"});
    let config = wrapped(
        "Qwen3VLForConditionalGeneration",
        &with(llama(), &own),
        &json!({}),
    );
    let qwen3 = good(&config);
    let attention = qwen3.layers[0].attention().unwrap();
    assert!(attention.qk_norm == QkNorm::PerHead && attention.rope.theta == 7.0);
}

/// Wrappers leave out values that equal the defaults of the text model's class.
#[test]
fn what_a_text_config_leaves_out_is_the_classes() {
    let text = json!({"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "torch_dtype": "float16", "pad_token_id": 0});
    let llava = good(&wrapped("LlavaForConditionalGeneration", &text, &json!({})));
    let attention = llava.layers[31].attention().unwrap();
    assert_eq!((llava.hidden_size, llava.layers.len()), (4096, 32));
    assert_eq!((attention.kv_heads, attention.head_dim), (32, 128));
    assert_eq!(
        (llava.layers[0].mlp.width(), llava.vocab_size),
        (11008, 32064)
    );
    assert_eq!(attention.rope.theta, 1e4);
    let text = json!({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128,
        "num_hidden_layers": 40, "sliding_window": null, "vocab_size": 131072});
    let pixtral = good(&wrapped("LlavaForConditionalGeneration", &text, &json!({})));
    let attention = pixtral.layers[39].attention().unwrap();
    assert_eq!((attention.heads, attention.kv_heads), (32, 8));
}

#[test]
fn what_a_wrapper_does_not_say_plainly_is_refused() {
    let class = "LlavaForConditionalGeneration";
    let text = |own: Value| with(with(llama(), &json!({"architectures": "(absent)"})), &own);
    for (text, outer, key) in [
        (
            text(json!({"logit_scale": 0.5})),
            json!({}),
            "`text_config.logit_scale` is 0.5",
        ),
        (
            text(json!({"model_type": "gemma3n_text"})),
            json!({}),
            "`text_config.model_type`",
        ),
        (
            text(json!({"hidden_act": "gelu"})),
            json!({}),
            "`text_config.hidden_act`",
        ),
        (
            text(json!({"hidden_size": "wide"})),
            json!({}),
            "`text_config.hidden_size`",
        ),
        (
            text(json!({})),
            json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            "`quantization_config.quant_method`",
        ),
        (
            json!("(absent)"),
            json!({"text_config": null}),
            "`text_config` is missing",
        ),
    ] {
        let error = load(&wrapped(class, &text, &outer)).expect_err("refused");
        assert!(error.contains(key), "{key}: {error}");
    }
    let nothing = text(
        json!({"logit_scale": null, "add_cross_attention": false, "pruned": {}, "min_length": 0}),
    );
    good(&wrapped(class, &nothing, &json!({})));
}

#[test]
fn tied_tables_and_special_tokens_stand_on_either_level() {
    let class = "LlavaForConditionalGeneration";
    let bare = json!({"tie_word_embeddings": "(absent)", "eos_token_id": null,
        "bos_token_id": "(absent)"});
    let said = json!({"tie_word_embeddings": true, "eos_token_id": [5, 7], "bos_token_id": 3});
    let outside = wrapped(class, &with(llama(), &bare), &said);
    let inside = wrapped(class, &with(llama(), &said), &json!({}));
    let neither = wrapped(class, &with(llama(), &bare), &json!({}));
    for config in [outside, inside] {
        let model = good(&config);
        assert!(model.tie_word_embeddings);
        assert_eq!(
            (model.eos_token_ids, model.bos_token_id),
            (vec![5, 7], Some(3))
        );
    }
    let model = good(&neither);
    assert!(!model.tie_word_embeddings && model.eos_token_ids.is_empty());
}

#[test]
fn the_prefix_is_that_of_the_stored_tensors() {
    let config = wrapped("LlavaForConditionalGeneration", &llama(), &json!({}));
    for (body, head) in [
        ("model.language_model", "lm_head"),
        ("language_model.model", "language_model.lm_head"),
        ("model", "lm_head"),
    ] {
        let dir = folder(&config, None);
        let embedding = format!("{body}.embed_tokens.weight");
        let stored = [
            "model.visual.patch_embed.weight",
            "mtp.fc.bias",
            &embedding,
            &format!("{head}.weight"),
        ];
        tensor_names(dir.path(), &stored);
        let names = crate::load(dir.path()).expect("served").names;
        assert_eq!(names.embedding, format!("{body}.embed_tokens"));
        assert_eq!(names.layer(1), format!("{body}.layers.1"));
        assert_eq!(
            (names.norm, names.head),
            (format!("{body}.norm"), head.to_owned())
        );
    }
    // Nothing is stored yet, or the model is whole.
    let dir = folder(&config, None);
    let names = || crate::load(dir.path()).expect("served").names;
    assert_eq!(names(), TensorNames::default());
    std::fs::write(dir.path().join("config.json"), llama().to_string()).expect("written");
    tensor_names(dir.path(), &["language_model.model.embed_tokens.weight"]);
    assert_eq!(names(), TensorNames::default());
}

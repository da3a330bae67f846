//! Layers that differ from each other: rotations, windows, and places of norms.

use lockstep_types::{ModelConfig, Norms, QkNorm, QueryScaling, RopeScaling};
use serde_json::{Value, json};

use super::factors::small;
use super::{good, load};
use crate::testing::with;

fn rotated(model: &ModelConfig) -> Vec<bool> {
    let rotates = |scaling| scaling != RopeScaling::Unrotated;
    let layers = model.attentions();
    layers.map(|layer| rotates(layer.rope.scaling)).collect()
}

fn windows(model: &ModelConfig) -> Vec<usize> {
    let layers = model.attentions();
    layers
        .map(|layer| layer.window.map_or(0, |window| window.get()))
        .collect()
}

#[test]
fn some_layers_of_smollm3_do_not_rotate() {
    let smollm3 = |own: Value| {
        let config = small("SmolLM3ForCausalLM", &json!({"num_hidden_layers": 6}));
        with(config, &own)
    };
    let fourth = [true, true, true, false, true, true];
    assert_eq!(rotated(&good(&smollm3(json!({})))), fourth);
    let listed = good(&smollm3(json!({"no_rope_layers": [1, 1, 1, 0, 1, 1]})));
    assert_eq!(listed, good(&smollm3(json!({}))));
    let second = good(&smollm3(json!({"no_rope_layer_interval": 2})));
    assert_eq!(rotated(&second), [true, false, true, false, true, false]);
    let own = json!({"use_sliding_window": true, "sliding_window": 16});
    assert_eq!(windows(&good(&smollm3(own))), [0, 0, 0, 16, 0, 0]);
    for list in [json!([1, 0]), json!([1, 1, 1, 1, 1, 2]), json!("all")] {
        let error = load(&smollm3(json!({"no_rope_layers": list}))).expect_err("refused");
        assert!(error.contains("`no_rope_layers`"), "{error}");
    }
}

#[test]
fn olmo_norms_outputs_and_all_heads_together() {
    for class in ["Olmo2ForCausalLM", "Olmo3ForCausalLM"] {
        let model = good(&small(class, &json!({"rms_norm_eps": "(absent)"})));
        for layer in &model.layers {
            assert_eq!(layer.norms, Norms::After);
            assert_eq!(layer.attention().unwrap().qk_norm, QkNorm::Whole);
            assert_eq!(layer.rms_norm_eps, 1e-5);
        }
    }
}

/// In older files the scaling belongs to full layers alone.
#[test]
fn kinds_of_layers_rotate_differently_in_both_dialects() {
    let yarn = json!({"rope_type": "yarn", "factor": 8.0,
        "original_max_position_embeddings": 64});
    for (class, layers, gelu, bases, sliding, windows_of) in [
        (
            "Olmo3ForCausalLM",
            4,
            false,
            json!({"rope_theta": 3e5}),
            3e5,
            vec![16, 16, 16, 0],
        ),
        (
            "Gemma3ForCausalLM",
            6,
            true,
            json!({"rope_theta": 3e5, "rope_local_base_freq": 2e3}),
            2e3,
            vec![16, 16, 16, 16, 16, 0],
        ),
    ] {
        let act = if gelu { "gelu_pytorch_tanh" } else { "silu" };
        let own = json!({"num_hidden_layers": layers, "sliding_window": 16, "hidden_act": act,
            "rope_theta": "(absent)"});
        let base = small(class, &own);
        let older = with(
            with(base.clone(), &bases),
            &json!({"rope_scaling": yarn.clone()}),
        );
        let mut full = yarn.clone();
        full["rope_theta"] = json!(3e5);
        let newer = with(
            base,
            &json!({"rope_parameters": {"full_attention": full,
                "sliding_attention": {"rope_type": "default", "rope_theta": sliding}}}),
        );
        let model = good(&older);
        assert_eq!(model, good(&newer), "{class}");
        assert_eq!(windows(&model), windows_of, "{class}");
        for layer in model.attentions() {
            let scaled = matches!(layer.rope.scaling, RopeScaling::Yarn { .. });
            assert_eq!(scaled, layer.window.is_none(), "{class}");
            let theta = if scaled { 3e5 } else { sliding };
            assert_eq!(layer.rope.theta, theta, "{class}");
        }
        let mixed = json!({"rope_parameters": {"full_attention": yarn.clone(),
            "sliding_attention": {"rope_type": "default"}}});
        let mixed = with(with(newer.clone(), &bases), &mixed);
        assert_eq!(good(&mixed), model, "{class}");
        for damaged in [json!("yarn"), json!([yarn.clone()]), json!(8)] {
            let damaged = with(newer.clone(), &json!({"rope_parameters": damaged}));
            let error = load(&damaged).expect_err("refused");
            assert!(error.contains("not an object"), "{class}: {error}");
        }
        let flat = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}});
        let error = load(&with(newer, &flat)).expect_err("refused");
        assert!(error.contains("`full_attention`"), "{class}: {error}");
    }
}

#[test]
fn gemma_2_and_older_gemma_3_say_which_layers_slide_by_an_interval() {
    let gemma = |class: &str, own: &Value| {
        let gelu = json!({"hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 4,
            "sliding_window": 16});
        good(&with(small(class, &gelu), own))
    };
    let second = gemma("Gemma2ForCausalLM", &json!({}));
    assert_eq!(windows(&second), [16, 0, 16, 0]);
    let own = json!({"sliding_window_pattern": 3});
    assert_eq!(windows(&gemma("Gemma3ForCausalLM", &own)), [16, 16, 0, 16]);
    let own = json!({"layer_types": ["full_attention", "full_attention", "sliding_attention",
        "full_attention"]});
    assert_eq!(windows(&gemma("Gemma3ForCausalLM", &own)), [0, 0, 16, 0]);
}

#[test]
fn yarn_grows_queries_and_keys_as_transformers_computes() {
    let yarn = |own: &Value| {
        let base = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 128});
        let own = json!({"rope_scaling": with(base, own)});
        let model = good(&small("Qwen3ForCausalLM", &own));
        let RopeScaling::Yarn {
            factor,
            attention_factor,
            ..
        } = model.layers[0].attention().unwrap().rope.scaling
        else {
            panic!("no YaRN");
        };
        (factor, attention_factor)
    };
    let grown = 0.1 * 4f64.ln() + 1.0;
    for (own, factor, attention) in [
        (json!({}), 4.0, grown),
        (json!({"factor": null}), 4.0, grown),
        (json!({"attention_factor": 1.5}), 4.0, 1.5),
        (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), 4.0, 1.0),
        (json!({"mscale": 1.0, "mscale_all_dim": 0}), 4.0, grown),
        (json!({"factor": 0.5}), 0.5, 1.0),
    ] {
        assert_eq!(yarn(&own), (factor, attention), "{own}");
    }
}

#[test]
fn queries_of_ministral_3_grow_with_their_position() {
    let ministral = |own: Value| small("Ministral3ForCausalLM", &own);
    let growths = |model: &ModelConfig| -> Vec<_> {
        let layers = model.attentions();
        layers.map(|layer| layer.rope.query_scaling).collect()
    };
    let of_class = good(&ministral(json!({"rope_theta": "(absent)"})));
    let expected = QueryScaling {
        beta: 0.1,
        original_max_position: 16384,
    };
    assert_eq!(growths(&of_class), [Some(expected); 2]);
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
        "original_max_position_embeddings": 128});
    let without = good(&ministral(json!({"rope_parameters": yarn.clone()})));
    assert_eq!(growths(&without), [None; 2]);
    let zero = with(yarn, &json!({"llama_4_scaling_beta": 0}));
    assert_eq!(good(&ministral(json!({"rope_parameters": zero}))), without);
    let odd = json!({"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}});
    let error = load(&ministral(odd)).expect_err("refused");
    assert!(error.contains("`rope_parameters`"), "{error}");
}

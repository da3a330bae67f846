//! Gemma 4's two kinds of heads, and what is refused.

use lockstep_types::{RopeScaling, Values};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::{llama, with};

/// The small Llama's sizes in the form of Google's files.
fn gemma4(own: &Value) -> Value {
    let text = json!({
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_act": "(absent)",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
        "sliding_window": 16, "rope_theta": "(absent)", "rope_scaling": "(absent)",
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
            "full_attention"],
    });
    with(with(llama(), &text), own)
}

#[test]
fn full_layers_have_heads_of_their_own() {
    let by_layer = json!({
        "global_head_dim": "(absent)", "num_global_key_value_heads": "(absent)",
        "per_layer_config": {"3": {"head_dim": 32, "num_key_value_heads": 1}},
    });
    for own in [json!({}), by_layer] {
        let model = good(&gemma4(&own));
        let found = model.attentions().map(|layer| {
            let window = layer.window.map(std::num::NonZeroUsize::get);
            (
                layer.head_dim,
                layer.kv_heads,
                window,
                layer.values,
                layer.scale,
            )
        });
        let found: Vec<_> = found.collect();
        let sliding = (16, 2, Some(16), Values::Normed, 1.0);
        let full = (32, 1, None, Values::NormedKeys, 1.0);
        assert_eq!(found, [sliding, sliding, sliding, full]);
    }
    let own = json!({"attention_k_eq_v": false});
    let model = good(&gemma4(&own));
    let full = model.layers[3].attention().expect("attention");
    assert_eq!((full.kv_heads, full.values), (2, Values::Normed));
}

/// The class's rotations: of a quarter of the pairs in full layers, which no file has to say.
#[test]
fn a_part_of_the_pairs_rotates_in_full_layers() {
    let part = |own: Value| {
        let model = good(&gemma4(&own));
        let ropes = [0, 3].map(|layer| {
            model.layers[layer]
                .attention()
                .expect("attention")
                .rope
                .clone()
        });
        (ropes[0].theta, ropes[1].theta, ropes[1].scaling)
    };
    let typed = |full: Value| {
        let sliding = json!({"rope_type": "default", "rope_theta": 1e4});
        json!({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}})
    };
    let quarter = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25,
        "rope_theta": 1e6});
    let expected = (1e4, 1e6, RopeScaling::Proportional { pairs: 4 });
    assert_eq!(part(typed(quarter)), expected);
    assert_eq!(part(json!({})), expected);
}

#[test]
fn models_with_more_in_a_layer_are_refused() {
    for (own, key) in [
        (
            json!({"hidden_size_per_layer_input": 256}),
            "`hidden_size_per_layer_input` is 256",
        ),
        (
            json!({"hidden_size_per_layer_input": "(absent)"}),
            "`hidden_size_per_layer_input`",
        ),
        (
            json!({"num_kv_shared_layers": 2}),
            "`num_kv_shared_layers` is 2",
        ),
        (json!({"enable_moe_block": true}), "`enable_moe_block`"),
        (
            json!({"use_bidirectional_attention": "all"}),
            "`use_bidirectional_attention`",
        ),
        (
            json!({"per_layer_config": {"2": {"head_dim": 32}}}),
            "`per_layer_config.3` is missing",
        ),
        (
            json!({"per_layer_config": {"3": {"head_dim": 32, "sliding_window": 8}}}),
            "`per_layer_config.sliding_window`",
        ),
        (
            json!({"per_layer_config": {"3": {"head_dim": 32}, "1": {"head_dim": 32}}}),
            "`per_layer_config.1`",
        ),
    ] {
        let error = load(&gemma4(&own)).expect_err("refused");
        assert!(error.contains(key), "{key}: {error}");
    }
    good(&gemma4(&json!({"use_bidirectional_attention": "vision"})));
}

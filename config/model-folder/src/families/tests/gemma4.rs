//! Gemma 4's two kinds of heads, and what is refused.

use lockstep_types::{ExpertGate, ExpertsSpec, Mlp, RopeScaling, Routing, Values};
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

/// The last three of six layers read the caches of the last two kinds of layers before them.
#[test]
fn the_last_layers_read_the_caches_of_others() {
    let types = ["sliding_attention", "full_attention"];
    let types: Vec<_> = (0..6).map(|layer| types[layer % 2]).collect();
    for (double_wide, widths) in [(false, [96, 96]), (true, [96, 192])] {
        let own = json!({"num_hidden_layers": 6, "num_kv_shared_layers": 3, "layer_types": types,
            "use_double_wide_mlp": double_wide});
        let model = good(&gemma4(&own));
        let read: Vec<_> = model.attentions().map(|layer| layer.kv_of).collect();
        assert_eq!(read, [None, None, None, Some(1), Some(2), Some(1)]);
        for (number, layer) in model.layers.iter().enumerate() {
            assert_eq!(layer.mlp.width(), widths[number / 3], "layer {number}");
        }
        let groups = model.kv_groups().into_iter().map(|group| group.layers);
        assert_eq!(groups.collect::<Vec<_>>(), [vec![1], vec![0, 2]]);
    }
}

/// The class has them, so a file that says nothing has them too.
#[test]
fn layers_may_have_embeddings_of_their_own() {
    let read = |own: Value| good(&gemma4(&own)).per_layer;
    assert_eq!(read(json!({})), None);
    for (own, expected) in [
        (
            json!({"hidden_size_per_layer_input": "(absent)"}),
            (256, 262_144, 16.0),
        ),
        (
            json!({"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 1000,
                "dtype": "bfloat16", "torch_dtype": "(absent)"}),
            (24, 1000, 4.90625),
        ),
    ] {
        let found = read(own).expect("there are some");
        assert_eq!((found.width, found.rows, found.factor), expected);
    }
}

#[test]
fn experts_stand_beside_mlps() {
    let own = json!({"enable_moe_block": true, "num_experts": 9, "top_k_experts": 3,
        "moe_intermediate_size": 28});
    for layer in good(&gemma4(&own)).layers {
        let Mlp::Parallel(both) = layer.mlp else {
            panic!("each layer has both");
        };
        assert_eq!(both.gated.width, 96);
        let ExpertsSpec {
            count,
            active,
            width,
            gate,
            routing,
            ..
        } = both.experts;
        assert_eq!((count, active, width), (9, 3, 28));
        assert_eq!(
            (gate, routing),
            (ExpertGate::GeluTanh, Routing::softmax(true))
        );
    }
}

#[test]
fn models_with_more_in_a_layer_are_refused() {
    for (own, key) in [
        (
            json!({"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 5}),
            "`vocab_size_per_layer_input` is 5, and the vocabulary has",
        ),
        (
            json!({"hidden_size_per_layer_input": -1}),
            "`hidden_size_per_layer_input` is -1",
        ),
        (
            json!({"num_kv_shared_layers": 4}),
            "`num_kv_shared_layers` is 4, and no layer before these",
        ),
        (
            json!({"num_kv_shared_layers": 5}),
            "`num_kv_shared_layers` is 5, and the model has 4 layers",
        ),
        (
            json!({"num_kv_shared_layers": 1}),
            "no layer before these has a cache of `full_attention`",
        ),
        (
            json!({"enable_moe_block": true}),
            "`num_experts` is missing",
        ),
        (
            json!({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 5}),
            "`top_k_experts` is 5, and there are 4 experts",
        ),
        (
            json!({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 2}),
            "`moe_intermediate_size` is missing",
        ),
        (json!({"num_experts": 4}), "`num_experts`"),
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

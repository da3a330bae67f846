//! LongRoPE.

use lockstep_types::{LongRope, RopeScaling};
use serde_json::{Value, json};

use super::factors::small;
use super::{good, load};
use crate::testing::with;

const CLASS: &str = "Phi3ForCausalLM";

/// A model with heads of 8 columns, of which three pairs are rotated.
fn phi4(own: &Value) -> Value {
    let base = json!({"partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5, 2.0],
            "long_factor": [1, 4, 16]}});
    with(small(CLASS, &base), own)
}

#[test]
fn divisors_are_those_of_the_longest_text() {
    let model = good(&phi4(&json!({})));
    let expected = LongRope {
        short: vec![1.0, 1.5, 2.0],
        long: vec![1.0, 4.0, 16.0],
        original_max_position: 64,
        attention_factor: (1.0 + 8f64.ln() / 64f64.ln()).sqrt(),
        served: 512,
    };
    for layer in model.attentions() {
        assert_eq!(layer.rope.long.as_ref(), Some(&expected));
        assert_eq!(
            (layer.rope.rotated, layer.rope.scaling),
            (Some(6), RopeScaling::Default)
        );
    }
    for (served, divisors) in [
        (512, [1.0, 4.0, 16.0]),
        (65, [1.0, 4.0, 16.0]),
        (64, [1.0, 1.5, 2.0]),
    ] {
        let serving = model.clone().serving(served);
        assert_eq!(serving.served(), Some(served));
        for layer in serving.attentions() {
            assert_eq!(
                layer.rope.long.as_ref().map(LongRope::divisors),
                Some(&divisors[..])
            );
        }
    }
    // The first files name it otherwise, and later ones have the parameters in one object.
    let scaling = json!({"short_factor": [1.0, 1.5, 2.0], "long_factor": [1, 4, 16]});
    let older = with(scaling.clone(), &json!({"type": "su"}));
    assert_eq!(good(&phi4(&json!({"rope_scaling": older}))), model);
    let newer = with(
        scaling,
        &json!({"rope_type": "longrope", "rope_theta": 500_000.0,
        "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64}),
    );
    let absent = "(absent)";
    let newer = json!({"rope_parameters": newer, "rope_scaling": absent, "rope_theta": absent,
        "partial_rotary_factor": absent, "original_max_position_embeddings": absent});
    assert_eq!(good(&phi4(&newer)), model);
}

#[test]
fn texts_that_are_no_longer_than_before_leave_scores_alone() {
    let model = good(&phi4(&json!({"original_max_position_embeddings": 512})));
    for layer in model.attentions() {
        let long = layer.rope.long.as_ref();
        assert_eq!(long.map(|long| long.attention_factor), Some(1.0));
    }
}

#[test]
fn damaged_lists_are_named() {
    let scaling = |own: Value| {
        let base = json!({"type": "longrope", "short_factor": [1.0, 1.5, 2.0],
            "long_factor": [1, 4, 16]});
        json!({"rope_scaling": with(base, &own)})
    };
    for (own, key) in [
        (
            scaling(json!({"short_factor": "(absent)"})),
            "`rope_scaling.short_factor` is missing",
        ),
        (
            scaling(json!({"long_factor": [1, 2]})),
            "`long_factor` has 2 numbers",
        ),
        (
            scaling(json!({"long_factor": [1, 2, 0]})),
            "`rope_scaling.long_factor` is not a list",
        ),
        (
            scaling(json!({"short_mscale": 1.25})),
            "`rope_scaling.short_mscale`",
        ),
        (json!({"partial_rotary_factor": 1.0}), "in 4 pairs"),
    ] {
        let error = load(&phi4(&own)).expect_err("refused");
        assert!(error.contains(key), "{own}: {error}");
    }
}

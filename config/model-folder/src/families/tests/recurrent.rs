//! Families with recurrent layers: Qwen3.5 and Qwen3-Next.

use lockstep_types::{
    ExpertTensors, GatedDeltaInputs, Mixer, Mlp, ModelConfig, NormKind, RopeScaling,
};
use serde_json::{Value, json};

use super::{good, load};
use crate::testing::{folder, llama, with};

const DENSE: &str = "Qwen3_5ForCausalLM";
const EXPERTS: &str = "Qwen3_5MoeForCausalLM";
const NEXT: &str = "Qwen3NextForCausalLM";

/// A small model of `class` with eight layers.
fn small(class: &str, own: &Value) -> Value {
    let sizes = json!({"architectures": [class], "model_type": "(absent)", "num_hidden_layers": 8,
        "head_dim": 16, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 40});
    let sizes = match class {
        DENSE => with(sizes, &json!({"num_experts": "(absent)"})),
        _ => sizes,
    };
    with(with(llama(), &sizes), own)
}

fn recurrent(model: &ModelConfig) -> Vec<usize> {
    let layers = model.layers.iter().enumerate();
    let recurrent = layers.filter(|(_, layer)| layer.has_state());
    recurrent.map(|(number, _)| number).collect()
}

#[test]
fn every_fourth_layer_has_attention_unless_the_file_says_otherwise() {
    for class in [DENSE, EXPERTS, NEXT] {
        let model = good(&small(class, &json!({})));
        assert_eq!(recurrent(&model), [0, 1, 2, 4, 5, 6], "{class}");
        assert!(model.has_states() && model.has_output_gates());
        assert_eq!(model.norm, NormKind::RmsUnitOffset);
        assert_eq!(model.kv_groups().len(), 1);
        assert_eq!(model.kv_groups()[0].layers, [3, 7]);
        assert_eq!(model.common_heads(), 4);
        let rotated: Vec<_> = model.attentions().map(|layer| layer.rope.rotated).collect();
        assert_eq!(rotated, [Some(4); 2]);
        let second = good(&small(class, &json!({"full_attention_interval": 2})));
        assert_eq!(recurrent(&second), [0, 2, 4, 6]);
        let kinds = |full: usize| -> Vec<_> {
            let kind = |layer| ["linear_attention", "full_attention"][usize::from(layer == full)];
            (0..8).map(kind).collect()
        };
        let listed = good(&small(class, &json!({"layer_types": kinds(5)})));
        assert_eq!(recurrent(&listed), [0, 1, 2, 3, 4, 6, 7]);
        for (own, said) in [
            (json!({"layer_types": kinds(9)}), "`layer_types`"),
            (
                json!({"full_attention_interval": 9}),
                "`full_attention_interval`",
            ),
            (
                json!({"layer_types": vec!["sliding_attention"; 8]}),
                "sliding_attention",
            ),
        ] {
            let error = load(&small(class, &own)).expect_err("refused");
            assert!(error.contains(said), "{error}");
        }
    }
}

#[test]
fn sizes_and_names_are_read() {
    let delta = |class| match good(&small(class, &json!({}))).layers.swap_remove(0).mixer {
        Mixer::GatedDelta(delta) => delta,
        _ => panic!("no recurrent layer"),
    };
    for class in [DENSE, EXPERTS, NEXT] {
        let delta = delta(class);
        assert_eq!((delta.key_heads, delta.value_heads), (4, 8));
        assert_eq!((delta.key_dim, delta.value_dim, delta.taps), (16, 32, 4));
        let together = matches!(delta.names.inputs, GatedDeltaInputs::ByKeyHead { .. });
        assert_eq!(together, class == NEXT);
    }
    for (class, renormalized) in [(EXPERTS, true), (NEXT, true)] {
        for layer in good(&small(class, &json!({}))).layers {
            let Mlp::Experts(experts) = layer.mlp else {
                panic!("{class}: no experts");
            };
            assert_eq!(experts.routing.renormalized, renormalized);
            let shared = experts.shared.as_ref().unwrap();
            assert_eq!(shared.width, 40);
            assert_eq!(shared.gate.as_deref(), Some("mlp.shared_expert_gate"));
            assert_eq!(experts.shared_count(), 0);
            let stacked = matches!(experts.names.experts, ExpertTensors::Stacked { .. });
            assert_eq!(stacked, class == EXPERTS);
        }
    }
    let dense = good(&small(
        NEXT,
        &json!({"mlp_only_layers": [2], "decoder_sparse_step": 2}),
    ));
    let sparse = |layer: &usize| matches!(dense.layers[*layer].mlp, Mlp::Experts(_));
    assert_eq!((0..8).filter(sparse).collect::<Vec<_>>(), [1, 3, 5, 7]);
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    for (class, own, said) in [
        (
            DENSE,
            json!({"linear_num_value_heads": 6}),
            "`linear_num_value_heads`",
        ),
        (
            DENSE,
            json!({"linear_key_head_dim": 20}),
            "`linear_key_head_dim`",
        ),
        (
            NEXT,
            json!({"linear_value_head_dim": 8}),
            "`linear_value_head_dim`",
        ),
        (
            DENSE,
            json!({"linear_conv_kernel_dim": 9}),
            "`linear_conv_kernel_dim`",
        ),
        (
            DENSE,
            json!({"linear_conv_kernel_dim": 1}),
            "`linear_conv_kernel_dim`",
        ),
        (
            EXPERTS,
            json!({"attn_output_gate": false}),
            "`attn_output_gate`",
        ),
        (
            DENSE,
            json!({"output_gate_type": "sigmoid"}),
            "`output_gate_type`",
        ),
        (
            NEXT,
            json!({"mamba_ssm_dtype": "bfloat16"}),
            "`mamba_ssm_dtype`",
        ),
        (
            EXPERTS,
            json!({"norm_topk_prob": false}),
            "`norm_topk_prob`",
        ),
        (DENSE, json!({"another_key": true}), "`another_key`"),
    ] {
        let error = load(&small(class, &own)).expect_err("refused");
        assert!(error.contains(said), "{class} {own}: {error}");
    }
}

/// Parameters that model cards of Qwen3.5 name for a million tokens.
#[test]
fn yarn_turns_a_part_of_each_head() {
    let yarn = json!({"mrope_interleaved": true, "mrope_section": [1, 1, 0],
        "rope_type": "yarn", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
        "factor": 4.0, "original_max_position_embeddings": 64});
    let own = json!({"rope_scaling": "(absent)", "rope_theta": "(absent)",
        "max_position_embeddings": 256, "rope_parameters": yarn});
    for class in [DENSE, EXPERTS] {
        let model = good(&small(class, &own));
        assert_eq!(model.attentions().count(), 2);
        for rope in model.attentions().map(|layer| &layer.rope) {
            let yarn = matches!(rope.scaling, RopeScaling::Yarn { factor: 4.0, .. });
            assert!(yarn && rope.rotated == Some(4), "{rope:?}");
        }
    }
}

/// Keys of published files, which have a draft layer, by itself and in a wrapper.
#[test]
fn published_files_are_read_and_have_a_draft_layer() {
    let own = json!({"attn_output_gate": true, "output_gate_type": "swish",
        "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false, "rope_scaling": "(absent)",
        "rope_theta": "(absent)", "rope_parameters": {"mrope_interleaved": true,
            "mrope_section": [1, 1, 0], "rope_type": "default", "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25}});
    for (class, inside, wrapper) in [
        (DENSE, "qwen3_5_text", "Qwen3_5ForConditionalGeneration"),
        (
            EXPERTS,
            "qwen3_5_moe_text",
            "Qwen3_5MoeForConditionalGeneration",
        ),
    ] {
        let text = small(class, &own);
        let alone = good(&text);
        let inner = with(
            text,
            &json!({"model_type": inside, "architectures": "(absent)"}),
        );
        let outer = json!({"architectures": [wrapper], "model_type": "ignored",
            "text_config": inner, "vision_config": {"depth": 2}});
        let dir = folder(&outer, None);
        let found = crate::Described::of(dir.path()).unwrap();
        assert_eq!(found.model.layers, alone.layers);
        let noted = |said: &str| found.notes.iter().any(|note| note.contains(said));
        assert!(found.own_draft && noted("text model"), "{:?}", found.notes);
    }
}

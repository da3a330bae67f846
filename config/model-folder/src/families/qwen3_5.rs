//! Qwen3.5 and 3.6, dense and with experts: three recurrent layers, then one with gated attention.
//! Models are stored with a part for images around them, or by themselves.

use lockstep_types::{
    ExpertTensors, ExpertsNames, GatedDeltaNames, LayerSpec, Mlp, ModelConfigError, NormKind,
    Routing, TensorNames,
};
use serde_json::{Value, json};

use super::gated_delta::{self, GATED, KEYS};
use super::{Family, Traits, experts};
use crate::raw::Raw;

pub(super) const DENSE: Family = Family {
    class_name: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    class: || {
        json!({
            "vocab_size": 248_320,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        norm: NormKind::RmsUnitOffset,
        keys: &KEYS,
        only,
        ..Traits::LLAMA
    },
    layers: |config| {
        let gated = GATED.gated(config)?;
        gated_delta::layers(config, GatedDeltaNames::default().inputs, |_| gated.clone())
    },
};

pub(super) const EXPERTS: Family = Family {
    class_name: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    class: || {
        json!({
            "vocab_size": 248_320,
            "hidden_size": 2048,
            // No layer is dense.
            "intermediate_size": 512,
            "num_hidden_layers": 40,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 8,
            "num_experts": 256,
        })
    },
    traits: Traits {
        only: || {
            let mut only = only();
            only["norm_topk_prob"] = true.into();
            only["mlp_only_layers"] = json!([]);
            only["decoder_sparse_step"] = 1.into();
            only
        },
        ..DENSE.traits
    },
    layers: experts_layers,
    ..DENSE
};

/// Values that files name, and that the families' code takes for granted.
fn only() -> Value {
    json!({
        "attn_output_gate": true,
        "output_gate_type": "swish",
        "mamba_ssm_dtype": "float32",
    })
}

/// Names of experts in two stacks, as published files have them. Files of other programs have
/// tensors for each expert: see [`super::stored_experts`].
fn experts_layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let names = ExpertsNames {
        experts: ExpertTensors::Stacked {
            gate_up: "mlp.experts.gate_up_proj".to_owned(),
            down: "mlp.experts.down_proj".to_owned(),
        },
        ..ExpertsNames::of_mlp()
    };
    let counts = ["num_experts", "num_local_experts"];
    let width = "moe_intermediate_size";
    let spec = experts::read(config, &counts, width, Routing::softmax(true), names)?;
    let spec = gated_delta::with_shared(config, spec)?;
    gated_delta::layers(config, GatedDeltaNames::default().inputs, |_| {
        Mlp::Experts(spec.clone())
    })
}

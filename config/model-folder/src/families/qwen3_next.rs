//! Qwen3-Next: three recurrent layers, then one with gated attention, and experts with a shared one
//! in all layers but those that are named dense.

use lockstep_types::{
    ExpertsNames, GatedDeltaInputs, LayerSpec, Mlp, ModelConfigError, NormKind, Routing,
    TensorNames,
};
use serde_json::json;

use super::gated_delta::{self, GATED, KEYS};
use super::qwen3_moe::is_sparse;
use super::{Family, Traits, experts};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3NextForCausalLM",
    model_type: "qwen3_next",
    class: || {
        json!({
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
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
            "num_experts_per_tok": 10,
            "num_experts": 512,
            "norm_topk_prob": true,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        norm: NormKind::RmsUnitOffset,
        keys: &KEYS,
        only: || json!({"attn_output_gate": true, "mamba_ssm_dtype": "float32"}),
        ..Traits::LLAMA
    },
    layers,
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let counts = ["num_experts", "num_local_experts"];
    let routing = Routing::softmax(config.flag("norm_topk_prob", true)?);
    let (width, names) = ("moe_intermediate_size", ExpertsNames::of_mlp());
    let spec = experts::read(config, &counts, width, routing, names)?;
    let spec = gated_delta::with_shared(config, spec)?;
    let (sparse, gated) = (is_sparse(config)?, GATED.gated(config)?);
    let names = |name: &str| format!("linear_attn.{name}");
    let inputs = GatedDeltaInputs::ByKeyHead {
        qkvz: names("in_proj_qkvz"),
        ba: names("in_proj_ba"),
    };
    gated_delta::layers(config, inputs, |number| match sparse(number) {
        true => Mlp::Experts(spec.clone()),
        false => gated.clone(),
    })
}

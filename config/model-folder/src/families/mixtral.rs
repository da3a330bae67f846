//! Mixtral: Mistral's attention, and experts in all layers, whose weights are renormalised.

use lockstep_types::{ExpertsNames, Mlp, Routing, TensorNames};
use serde_json::json;

use super::{Family, Traits, dense::Dense, experts, window::Windows};

pub(super) const FAMILY: Family = Family {
    class_name: "MixtralForCausalLM",
    model_type: "mixtral",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        only: || json!({"norm_topk_prob": true}),
        ..Traits::LLAMA
    },
    layers: |config| {
        let keys = ["num_local_experts", "num_experts"];
        let experts = experts::read(
            config,
            &keys,
            "intermediate_size",
            Routing::softmax(true),
            ExpertsNames::of_sparse_block(),
        )?;
        MIXTRAL.layers_with(config, |_| Mlp::Experts(experts.clone()))
    },
};

const MIXTRAL: Dense = Dense {
    windows: Windows::Always,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

//! Llama, and models of other names that are written as Llamas.

use lockstep_types::TensorNames;
use serde_json::json;

use super::{Family, Traits, dense::Dense};

pub(super) const FAMILY: Family = Family {
    class_name: "LlamaForCausalLM",
    model_type: "llama",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        })
    },
    names: TensorNames::default,
    traits: Traits::LLAMA,
    layers: |config| Dense::LLAMA.layers(config),
};

//! Mistral: a sliding window in some releases.

use lockstep_types::TensorNames;
use serde_json::json;

use super::{Family, Traits, dense::Dense, window::Windows};

pub(super) const FAMILY: Family = Family {
    class_name: "MistralForCausalLM",
    model_type: "mistral",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        })
    },
    names: TensorNames::default,
    traits: Traits::LLAMA,
    layers: |config| MISTRAL.layers(config),
};

const MISTRAL: Dense = Dense {
    windows: Windows::Always,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

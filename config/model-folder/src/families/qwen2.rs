//! Qwen2 and Qwen2.5: biases on q, k and v, which no key mentions, and no others.

use lockstep_types::TensorNames;
use serde_json::json;

use super::{Family, Traits, dense::Dense, window::Windows};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    class: || {
        json!({
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "max_window_layers": 28,
        })
    },
    names: TensorNames::default,
    traits: Traits::LLAMA,
    layers: |config| QWEN2.layers(config),
};

const QWEN2: Dense = Dense {
    qkv_bias: true,
    windows: Windows::Chosen,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

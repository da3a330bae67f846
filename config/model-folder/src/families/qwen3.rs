//! Qwen3: RMS norms on the heads of q and k.

use lockstep_types::TensorNames;
use serde_json::json;

use super::{Family, dense::Dense, qwen2};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    class: || {
        json!({
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "max_window_layers": 28,
        })
    },
    names: TensorNames::default,
    layers: |config| QWEN3.layers(config),
    window: qwen2::window,
};

const QWEN3: Dense = Dense {
    qkv_bias: false,
    qk_norm: true,
    no_bias: &["mlp_bias"],
};

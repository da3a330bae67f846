//! Phi-3 and Phi-4: q, k and v in one tensor, gate and up in another; a part of each head may be
//! rotated, and long contexts have LongRoPE.

use lockstep_types::{AttentionNames, GatedMlpNames, TensorNames};
use serde_json::json;

use super::{Family, Traits, dense::Dense, window::Windows};

pub(super) const FAMILY: Family = Family {
    class_name: "Phi3ForCausalLM",
    model_type: "phi3",
    class: || {
        json!({
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        // Phi-4-mini has these, from its own code.
        only: || json!({"full_attn_mod": 1, "interpolate_factor": 1}),
        ..Traits::LLAMA
    },
    layers: |config| PHI3.layers(config),
};

const PHI3: Dense = Dense {
    windows: Windows::Always,
    partly_rotated: true,
    no_bias: &["attention_bias", "mlp_bias"],
    attention_names: || {
        let qkv = "self_attn.qkv_proj".to_owned();
        AttentionNames {
            query: qkv.clone(),
            key: qkv.clone(),
            value: qkv,
            ..AttentionNames::default()
        }
    },
    mlp_names: || {
        let gate_up = "mlp.gate_up_proj".to_owned();
        GatedMlpNames {
            gate: gate_up.clone(),
            up: gate_up,
            ..GatedMlpNames::default()
        }
    },
    ..Dense::LLAMA
};

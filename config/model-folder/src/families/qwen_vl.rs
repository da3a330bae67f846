//! Text models of Qwen-VL: Qwen2 and Qwen3 with other sizes where keys are left out.
//!
//! Their rotary embedding has a position for each of three axes: time, height and width. The
//! three are equal for a token of text, so each pair turns by the angle that plain rotary
//! embedding has. Qwen3-VL adds features of images to early layers at the images' tokens
//! alone, so text passes as through Qwen3.

use serde_json::json;

use super::{Family, Traits, dense::Dense, qwen2, qwen3, window::Windows};

pub(super) const QWEN2: Family = Family {
    model_type: "qwen2_vl_text",
    class: || {
        json!({
            "vocab_size": 152_064,
            "hidden_size": 8192,
            "intermediate_size": 29568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "sliding_window": 4096,
            "max_window_layers": 80,
        })
    },
    traits: Traits {
        // It stands beside the text model's keys in files without `text_config`.
        keys: &["vision_config"],
        ..qwen2::FAMILY.traits
    },
    ..qwen2::FAMILY
};

pub(super) const QWEN2_5: Family = Family {
    model_type: "qwen2_5_vl_text",
    ..QWEN2
};

pub(super) const QWEN3: Family = Family {
    model_type: "qwen3_vl_text",
    class: || {
        json!({
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 128_000,
            // Of transformers 4: files of transformers 5 always name it.
            "rope_theta": 5e6,
        })
    },
    layers: |config| UNWINDOWED.layers(config),
    ..qwen3::FAMILY
};

const UNWINDOWED: Dense = Dense {
    windows: Windows::Never,
    ..qwen3::QWEN3
};

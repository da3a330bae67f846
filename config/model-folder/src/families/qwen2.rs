//! Qwen2 and Qwen2.5: biases on q, k and v, which no key mentions, and no others.

use lockstep_types::{ModelConfigError, TensorNames};
use serde_json::json;

use super::{
    Family,
    dense::{self, Dense},
    layer_types::{self, LayerType},
};
use crate::raw::Raw;

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
    layers: |config| QWEN2.layers(config),
    window,
};

const QWEN2: Dense = Dense {
    qkv_bias: true,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

/// Reads the window of Qwen's dense families. Some layers have it if `layer_types` says so.
/// Otherwise the layers from `max_window_layers` on have it if `use_sliding_window` is set.
pub(super) fn window(config: &Raw) -> Result<Option<usize>, ModelConfigError> {
    let depth = dense::depth(config)?;
    let slides = match layer_types::named(config, depth)? {
        Some(types) => types.contains(&LayerType::Sliding),
        None => {
            config.flag("use_sliding_window", false)?
                && config
                    .size("max_window_layers")
                    .map_or(true, |first| first.is_none_or(|first| first < depth))
        }
    };
    match slides {
        true => config.size("sliding_window"),
        false => Ok(None),
    }
}

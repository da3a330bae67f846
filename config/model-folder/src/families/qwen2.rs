//! Qwen2 and Qwen2.5: biases on q, k and v, which no key mentions, and no others.

use lockstep_types::ModelConfigError;

use super::{
    Family,
    dense::{self, Dense},
};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    layers: |config| QWEN2.layers(config),
    window,
};

const QWEN2: Dense = Dense {
    kv_heads: Some(32),
    head_dim: None,
    qkv_bias: true,
    qk_norm: false,
    no_bias: &["attention_bias", "mlp_bias"],
};

/// Reads the window of Qwen's dense families. Some layers have it if `layer_types` says so.
/// Otherwise the layers from `max_window_layers` on have it if `use_sliding_window` is set.
pub(super) fn window(config: &Raw) -> Result<Option<usize>, ModelConfigError> {
    let layers = config.get("layer_types").and_then(|types| types.as_array());
    let slides = match layers {
        Some(types) => types.iter().any(|kind| kind == "sliding_attention"),
        None => {
            let depth = dense::depth(config)?;
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

//! Mistral: a sliding window in some releases.

use super::{Family, dense::Dense};

pub(super) const FAMILY: Family = Family {
    class_name: "MistralForCausalLM",
    model_type: "mistral",
    layers: |config| MISTRAL.layers(config),
    window: |config| match config.has(WINDOW) {
        true => config.size(WINDOW),
        false => Ok(Some(WINDOW_WHERE_ABSENT)),
    },
};

const MISTRAL: Dense = Dense {
    kv_heads: Some(8),
    head_dim: None,
    qkv_bias: false,
    qk_norm: false,
    no_bias: &["attention_bias", "mlp_bias"],
};

const WINDOW: &str = "sliding_window";
/// Window in tokens without such a key, as in transformers.
const WINDOW_WHERE_ABSENT: usize = 4096;

//! Qwen3: RMS norms on the heads of q and k.

use super::{Family, dense::Dense, qwen2};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    layers: |config| QWEN3.layers(config),
    window: qwen2::window,
};

const QWEN3: Dense = Dense {
    kv_heads: Some(32),
    head_dim: Some(128),
    qkv_bias: false,
    qk_norm: true,
    no_bias: &["mlp_bias"],
};

//! Llama, and models of other names that are written as Llamas.

use super::{Family, dense::Dense};

pub(super) const FAMILY: Family = Family {
    class_name: "LlamaForCausalLM",
    model_type: "llama",
    layers: |config| LLAMA.layers(config),
    window: |_| Ok(None),
};

const LLAMA: Dense = Dense {
    kv_heads: None,
    head_dim: None,
    qkv_bias: false,
    qk_norm: false,
    no_bias: &[],
};

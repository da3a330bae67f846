//! Qwen3: RMS norms on the heads of q and k.

use lockstep_types::{QkNorm, TensorNames};

use super::{Family, Traits, dense::Dense, qwen2, window::Windows};

pub(super) const FAMILY: Family = Family {
    class_name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    class: || {
        let mut class = (qwen2::FAMILY.class)();
        class["head_dim"] = 128.into();
        class
    },
    names: TensorNames::default,
    traits: Traits::LLAMA,
    layers: |config| QWEN3.layers(config),
};

pub(super) const QWEN3: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    windows: Windows::Chosen,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

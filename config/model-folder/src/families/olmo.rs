//! OLMo 2 and 3: norms behind the blocks instead of before them, and norms over all heads of
//! queries and of keys together. OLMo 3 has sliding windows in three of four layers, and scales
//! the frequencies of the others alone.

use lockstep_types::{LayerSpec, ModelConfigError, Norms, QkNorm, TensorNames};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::rope::{Bases, by_type};
use super::{Family, Traits, layer_types, window::Windows};
use crate::raw::Raw;

pub(super) const OLMO2: Family = Family {
    class_name: "Olmo2ForCausalLM",
    model_type: "olmo2",
    class,
    names: TensorNames::default,
    traits: TRAITS,
    layers: |config| DENSE.layers(config),
};

pub(super) const OLMO3: Family = Family {
    class_name: "Olmo3ForCausalLM",
    model_type: "olmo3",
    class: || {
        let mut class = class();
        class["sliding_window"] = 4096.into();
        class
    },
    names: TensorNames::default,
    traits: TRAITS,
    layers: windowed,
};

const TRAITS: Traits = Traits {
    keys: &[],
    ..Traits::LLAMA
};

const DENSE: Dense = Dense {
    norms: Norms::After,
    qk_norm: QkNorm::Whole,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

const WINDOWED: Dense = Dense {
    windows: Windows::Typed,
    ..DENSE
};

fn class() -> Value {
    json!({
        "vocab_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    })
}

fn windowed(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let mut config = by_type(
        config,
        &Bases {
            full: 500_000.0,
            sliding: 500_000.0,
            sliding_key: "rope_theta",
        },
    )?;
    let depth = depth(&config)?;
    layer_types::fill(&mut config, depth, 4);
    WINDOWED.layers(&config)
}

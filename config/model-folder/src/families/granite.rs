//! Granite 3: a Llama with fixed factors for embedding, attention, residual stream and logits.

use lockstep_types::{LayerSpec, ModelConfigError, Multipliers, TensorNames};
use serde_json::json;

use super::{Family, Traits, dense::Dense};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "GraniteForCausalLM",
    model_type: "granite",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        multipliers,
        keys: &KEYS,
        ..Traits::LLAMA
    },
    layers: |config| scaled(config, Dense::LLAMA.layers(config)?),
};

/// Keys of the factors.
pub(super) const KEYS: [&str; 4] = [
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "residual_multiplier",
];

/// Reads the factors outside of layers.
pub(super) fn multipliers(config: &Raw) -> Result<Multipliers, ModelConfigError> {
    let factor = |key| Ok(config.number(key)?.unwrap_or(1.0) as f32);
    Ok(Multipliers {
        embedding: factor("embedding_multiplier")?,
        residual: factor("residual_multiplier")?,
        logits: factor("logits_scaling")?,
        logit_softcap: None,
    })
}

/// Gives layers the family's factor of scores.
pub(super) fn scaled(
    config: &Raw,
    mut layers: Vec<LayerSpec>,
) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let scale = config.number("attention_multiplier")?.unwrap_or(1.0) as f32;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        attention.scale = scale;
    }
    Ok(layers)
}

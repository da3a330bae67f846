//! SmolLM3: a Llama in which some layers do not rotate queries and keys (NoPE).

use lockstep_types::{LayerSpec, ModelConfigError, RopeConfig, TensorNames};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::layer_types::{self, LayerType};
use super::{Family, Traits, window::Windows};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    class: || {
        json!({
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "tie_word_embeddings": true,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[ROTATED, INTERVAL],
        ..Traits::LLAMA
    },
    layers,
};

/// Key of the list with 1 for each layer that rotates, and 0 for each that does not.
const ROTATED: &str = "no_rope_layers";
/// Key of the interval of layers that do not rotate, where there is no list.
const INTERVAL: &str = "no_rope_layer_interval";

const SMOLLM3: Dense = Dense {
    windows: Windows::Chosen,
    ..Dense::LLAMA
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let rotated = rotated(config, depth(config)?)?;
    let mut config = config.clone();
    if config.get(layer_types::KEY).is_none() {
        let slides =
            config.flag("use_sliding_window", false)? && config.get("sliding_window").is_some();
        let kind = |rotated: &bool| match slides && !rotated {
            true => LayerType::Sliding.name(),
            false => LayerType::Full.name(),
        };
        let kinds: Vec<_> = rotated.iter().map(kind).collect();
        config.put(layer_types::KEY, kinds.into());
    }
    let mut layers = SMOLLM3.layers(&config)?;
    let attentions = layers.iter_mut().filter_map(LayerSpec::attention_mut);
    for (attention, rotated) in attentions.zip(rotated) {
        if !rotated {
            attention.rope = RopeConfig::unrotated();
        }
    }
    Ok(layers)
}

/// Says of each layer if it rotates.
fn rotated(config: &Raw, depth: usize) -> Result<Vec<bool>, ModelConfigError> {
    let Some(list) = config.get(ROTATED) else {
        let interval = config.size(INTERVAL)?.unwrap_or(4);
        let layers = 1..=depth;
        return Ok(layers
            .map(|layer| !layer.is_multiple_of(interval))
            .collect());
    };
    let flag = |value: &Value| match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    let flags = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let flags: Option<Vec<bool>> = flags.iter().map(flag).collect();
    flags
        .filter(|flags| flags.len() == depth)
        .ok_or_else(|| config.wrong(ROTATED, format!("is {list}, not {depth} times 0 or 1")))
}

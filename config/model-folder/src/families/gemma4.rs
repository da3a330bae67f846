//! Gemma 4's models: full layers have heads of their own width whose values are their keys,
//! and rotate a part of their pairs; values have norms; a scale follows each layer. In small models
//! the last layers read the caches of layers before them, and layers have embeddings of their own;
//! in sparse ones experts stand beside each MLP.

mod parallel;
mod per_layer;
mod shared;

use lockstep_types::{Activation, LayerSpec, ModelConfigError, Norms, QkNorm, TensorNames, Values};
use serde_json::{Value, json};

use super::dense::{Dense, depth};
use super::gemma::{self, LOGIT_CAP};
use super::rope::{Bases, by_type};
use super::{
    Family, Traits,
    layer_types::{self, LayerType},
    window::Windows,
};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    class,
    names: || TensorNames {
        mlp_norm: "pre_feedforward_layernorm".to_owned(),
        layer_scale: Some("layer_scalar".to_owned()),
        ..TensorNames::default()
    },
    traits: Traits {
        multipliers: gemma::multipliers,
        per_layer: per_layer::read,
        keys: &[
            LOGIT_CAP,
            FULL_HEAD,
            FULL_KV_HEADS,
            KEYS_ARE_VALUES,
            BIDIRECTIONAL,
            parallel::EXPERTS,
            parallel::COUNT,
            parallel::ACTIVE,
            parallel::WIDTH,
            per_layer::WIDTH,
            per_layer::ROWS,
            shared::LAYERS,
            shared::DOUBLE_WIDE,
            "hidden_activation",
            PER_LAYER_CONFIG,
        ],
        ..Traits::LLAMA
    },
    layers,
};

/// Key of the width of full layers' heads.
const FULL_HEAD: &str = "global_head_dim";
/// Key of the number of full layers' key/value heads.
const FULL_KV_HEADS: &str = "num_global_key_value_heads";
/// Key of the same in files of transformers 5, by layer.
const PER_LAYER_CONFIG: &str = "per_layer_config";
/// Key that full layers' values are their keys.
const KEYS_ARE_VALUES: &str = "attention_k_eq_v";
/// Key of a mask by which tokens see later ones: "vision" is about images alone.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

const DENSE: Dense = Dense {
    qk_norm: QkNorm::PerHead,
    norms: Norms::Around,
    activation: Activation::GeluTanh,
    windows: Windows::Typed,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

fn class() -> Value {
    json!({
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        FULL_HEAD: 512,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        per_layer::WIDTH: 256,
        per_layer::ROWS: 262_144,
        "tie_word_embeddings": true,
    })
}

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    refuse(config)?;
    let mut config = config.clone();
    if config.get("rope_parameters").is_none() {
        // The class's own.
        let full = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25});
        config.put("rope_parameters", json!({"full_attention": full}));
    }
    let mut config = by_type(
        &config,
        &Bases {
            full: 1e6,
            sliding: 1e4,
            sliding_key: "rope_local_base_freq",
        },
    )?;
    let depth = depth(&config)?;
    layer_types::fill(&mut config, depth, 6);
    if config
        .get(layer_types::KEY)
        .and_then(|kinds| kinds.get(depth - 1)?.as_str())
        != Some(LayerType::Full.name())
    {
        // The class makes a full layer of it, whatever its tensors are for.
        let remedy = "the last layer has full attention in all models of the family";
        return Err(config.unsupported(layer_types::KEY, remedy));
    }
    let keys_are_values = config.flag(KEYS_ARE_VALUES, false)?;
    let full = full(&config, keys_are_values)?;
    let layers_of = |config: &Raw| match parallel::read(config, &DENSE)? {
        None => DENSE.layers(config),
        Some(mlp) => DENSE.layers_with(config, |_| mlp.clone()),
    };
    let (sliding, full) = (layers_of(&config)?, layers_of(&full)?);
    let types = layer_types::read(&config, depth)?;
    let layers = types.iter().copied().zip(sliding.into_iter().zip(full));
    let layers = layers.map(|(kind, (sliding, full))| {
        let is_full = kind == LayerType::Full;
        let mut layer = if is_full { full } else { sliding };
        if let Some(attention) = layer.attention_mut() {
            attention.scale = 1.0;
            attention.values = match keys_are_values && is_full {
                true => Values::NormedKeys,
                false => Values::Normed,
            };
        }
        layer
    });
    let mut layers: Vec<_> = layers.collect();
    shared::share(&config, &types, &mut layers)?;
    Ok(layers)
}

/// Returns the keys as full layers read them.
fn full(config: &Raw, keys_are_values: bool) -> Result<Raw, ModelConfigError> {
    let mut full = config.clone();
    let Some(layers) = config.object(PER_LAYER_CONFIG)? else {
        full.put("head_dim", config.required(FULL_HEAD)?.into());
        if let Some(heads) = config.size(FULL_KV_HEADS)?.filter(|_| keys_are_values) {
            full.put("num_key_value_heads", heads.into());
        }
        return Ok(full);
    };
    let types = layer_types::read(config, depth(config)?)?.into_iter();
    let is_full = |(number, kind)| (kind == LayerType::Full).then_some(number);
    let numbers: Vec<usize> = types.enumerate().filter_map(is_full).collect();
    let mut own: Option<Value> = None;
    for number in &numbers {
        let given = layers.get(&number.to_string()).cloned();
        let given = given.ok_or_else(|| layers.wrong(&number.to_string(), "is missing"))?;
        if own.as_ref().is_some_and(|first| *first != given) {
            let remedy = "all full layers are alike";
            return Err(layers.unsupported(&number.to_string(), remedy));
        }
        own = Some(given);
    }
    if let Some(other) = layers
        .keys()
        .find(|key| !numbers.iter().any(|n| n.to_string() == *key))
    {
        return Err(layers.unsupported(other, "it is no full layer"));
    }
    for (key, value) in own.iter().filter_map(Value::as_object).flatten() {
        if !["head_dim", "num_key_value_heads"].contains(&key.as_str()) {
            return Err(layers.unsupported(key, "layers differ by their heads alone"));
        }
        full.put(key, value.clone());
    }
    Ok(full)
}

/// Refuses models that are not for generation.
fn refuse(config: &Raw) -> Result<(), ModelConfigError> {
    match config.text(BIDIRECTIONAL)? {
        None | Some("vision") => Ok(()),
        Some(_) => {
            let remedy = "tokens see earlier tokens alone; use a model that generates text";
            Err(config.unsupported(BIDIRECTIONAL, remedy))
        }
    }
}

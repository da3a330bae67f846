//! Ministral 3: Mistral with YaRN, whose queries grow with their position.

use lockstep_types::{
    LayerSpec, ModelConfigError, QueryScaling, RopeConfig, RopeScaling, TensorNames,
};
use serde_json::{Value, json};

use super::{Family, Traits, dense::Dense, rope::strength, window::Windows};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Ministral3ForCausalLM",
    model_type: "ministral3",
    class: || {
        json!({
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-5,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[],
        ..Traits::LLAMA
    },
    layers,
};

const MINISTRAL3: Dense = Dense {
    windows: Windows::Always,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

/// Keys of the rotary parameters, of transformers 5 and 4.
pub(super) const PARAMETERS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Key among them for the growth of queries.
pub(super) const BETA: &str = "llama_4_scaling_beta";

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let (config, beta) = without_growth(config, class_parameters)?;
    let mut layers = MINISTRAL3.layers(&config)?;
    for rope in layers.iter_mut().filter_map(|layer| layer.mixer.rope_mut()) {
        *rope = grown(&config, rope.clone(), beta)?;
    }
    Ok(layers)
}

/// Returns `config` without the growth of queries among its rotary parameters, which are those of
/// the `class` where the file has none, and that growth.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged.
pub(super) fn without_growth(
    config: &Raw,
    class: fn() -> Value,
) -> Result<(Raw, Option<f64>), ModelConfigError> {
    let mut config = config.clone();
    if PARAMETERS.iter().all(|key| config.get(key).is_none()) {
        config.put(PARAMETERS[0], class());
    }
    let mut beta = None;
    for key in PARAMETERS {
        let Some(own) = config.object(key)? else {
            continue;
        };
        beta = beta.or(strength(&own, BETA)?);
        let mut value = config.get(key).cloned().unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.remove(BETA);
        }
        config.put(key, value);
    }
    Ok((config, beta))
}

/// Returns the rotation `rope` with queries that grow by `beta`, if that is given.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] for a rotation that is not YaRN's.
pub(super) fn grown(
    config: &Raw,
    mut rope: RopeConfig,
    beta: Option<f64>,
) -> Result<RopeConfig, ModelConfigError> {
    match (beta, rope.scaling) {
        (None, _) => {}
        (
            Some(beta),
            RopeScaling::Yarn {
                original_max_position,
                ..
            },
        ) => {
            rope.query_scaling = Some(QueryScaling {
                beta,
                original_max_position,
            });
        }
        _ => return Err(config.unsupported(PARAMETERS[0], "queries grow with YaRN alone")),
    }
    Ok(rope)
}

/// Rotary parameters where a file has none, as in the family's class.
fn class_parameters() -> Value {
    json!({
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        BETA: 0.1,
    })
}

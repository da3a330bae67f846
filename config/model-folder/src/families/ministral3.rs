//! Ministral 3: Mistral with YaRN, whose queries grow with their position.

use lockstep_types::{LayerSpec, ModelConfigError, QueryScaling, RopeScaling, TensorNames};
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
const PARAMETERS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Key among them for the growth of queries.
const BETA: &str = "llama_4_scaling_beta";

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let mut config = config.clone();
    if PARAMETERS.iter().all(|key| config.get(key).is_none()) {
        config.put(PARAMETERS[0], class_parameters());
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
    let mut layers = MINISTRAL3.layers(&config)?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        let rope = &mut attention.rope;
        if let (
            Some(beta),
            RopeScaling::Yarn {
                original_max_position,
                ..
            },
        ) = (beta, rope.scaling)
        {
            rope.query_scaling = Some(QueryScaling {
                beta,
                original_max_position,
            });
        } else if beta.is_some() {
            let remedy = "queries grow with YaRN alone";
            return Err(config.unsupported(PARAMETERS[0], remedy));
        }
    }
    Ok(layers)
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

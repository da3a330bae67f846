//! gpt-oss: attention with sinks, windows in every second layer, and experts with biases and
//! bounded gates in all layers.

use lockstep_types::{
    ExpertGate, ExpertTensors, ExpertsNames, ExpertsSpec, LayerSpec, Mlp, ModelConfigError,
    RopeScaling, Routing, TensorNames,
};
use serde_json::json;

use super::dense::{Dense, depth};
use super::{Family, Traits, experts, layer_types, window::Windows};
use crate::raw::Raw;

/// Second key for the number of experts that a position goes through.
const ACTIVE: &str = "experts_per_token";
/// Second key for the length that the model was first trained on.
const ORIGINAL: &str = "initial_context_length";
const ALPHA: &str = "swiglu_alpha";
const LIMIT: &str = "swiglu_limit";

pub(super) const FAMILY: Family = Family {
    class_name: "GptOssForCausalLM",
    model_type: "gpt_oss",
    class: || {
        json!({
            "vocab_size": 201_088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "sliding_window": 128,
            "attention_bias": true,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            ALPHA: 1.702,
            LIMIT: 7.0,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[ACTIVE, ORIGINAL, ALPHA, LIMIT],
        ..Traits::LLAMA
    },
    layers,
};

const GPT_OSS: Dense = Dense {
    windows: Windows::Typed,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let mut config = config.clone();
    let rotation = ["rope_parameters", "rope_scaling"];
    if rotation.iter().all(|key| config.get(key).is_none()) {
        let yarn = json!({
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": false,
            "original_max_position_embeddings": 4096,
        });
        config.put(rotation[0], yarn);
    }
    let depth = depth(&config)?;
    layer_types::fill(&mut config, depth, 2);
    let experts = mixture(&config)?;
    let mut layers = GPT_OSS.layers_with(&config, |_| Mlp::Experts(experts.clone()))?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        attention.sinks = true;
        let original = match attention.rope.scaling {
            RopeScaling::Yarn {
                original_max_position,
                ..
            } => Some(original_max_position),
            _ => None,
        };
        same(&config, ORIGINAL, original)?;
    }
    Ok(layers)
}

/// Reads the mixture of experts of all layers.
fn mixture(config: &Raw) -> Result<ExpertsSpec, ModelConfigError> {
    let counts = ["num_local_experts", "num_experts"];
    let width = "intermediate_size";
    let mut spec = experts::read(config, &counts, width, Routing::softmax(true), names())?;
    let number = |key, class: f32| Ok(config.number(key)?.map_or(class, |value| value as f32));
    spec.gate = ExpertGate::Clamped {
        limit: number(LIMIT, 7.0)?,
        alpha: number(ALPHA, 1.702)?,
    };
    spec.router_bias = true;
    same(config, ACTIVE, Some(spec.active))?;
    Ok(spec)
}

/// Checks that a second key for a size, where a file has it, does not contradict the first.
fn same(config: &Raw, key: &str, found: Option<usize>) -> Result<(), ModelConfigError> {
    match (config.size(key)?, found) {
        (Some(second), Some(found)) if second != found => {
            let message = format!("is {second}, and another key says {found}; remove one of them");
            Err(config.wrong(key, message))
        }
        _ => Ok(()),
    }
}

fn names() -> ExpertsNames {
    let named = |name: &str| format!("mlp.{name}");
    ExpertsNames {
        router: named("router"),
        correction: String::new(),
        experts: ExpertTensors::Interleaved {
            gate_up: named("experts.gate_up_proj"),
            down: named("experts.down_proj"),
            bias: true,
        },
    }
}

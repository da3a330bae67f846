//! Mistral 4: DeepSeek's latent attention with queries that grow with their position, and experts
//! that are weighed by a softmax.

use lockstep_types::{
    ExpertTensors, GroupWorth, LayerSpec, ModelConfigError, Routing, TensorNames,
};
use serde_json::{Value, json};

use super::{Family, Traits, deepseek, latent, ministral3};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Mistral4ForCausalLM",
    model_type: "mistral4",
    class: || {
        json!({
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "max_position_embeddings": 1_048_576,
            "moe_intermediate_size": 2048,
            "n_shared_experts": 1,
            "n_routed_experts": 128,
            "routed_scaling_factor": 1.0,
            "kv_lora_rank": 256,
            "q_lora_rank": 1024,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "qk_nope_head_dim": 64,
            "num_experts_per_tok": 4,
            "first_k_dense_replace": 0,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &KEYS,
        ..Traits::LLAMA
    },
    layers,
};

const KEYS: [&str; 12] = latent::with_own(["rope_interleave"]);

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let (mut config, beta) = ministral3::without_growth(config, class_parameters)?;
    rotate_whole(&mut config)?;
    let config = &config;
    let mut attention = latent::attention(config)?;
    attention.rope = ministral3::grown(config, attention.rope, beta)?;
    let routing = Routing {
        factor: deepseek::factor(config)?,
        ..Routing::softmax(config.flag("norm_topk_prob", true)?)
    };
    let mut experts = latent::mixture(config, routing, Some(GroupWorth::TwoLargest))?;
    experts.names.experts = ExpertTensors::Stacked {
        gate_up: "mlp.experts.gate_up_proj".to_owned(),
        down: "mlp.experts.down_proj".to_owned(),
    };
    let dense = latent::first_dense(config)?;
    latent::layers(config, &attention, &experts, |number| number < dense)
}

/// Removes the part of a head that is rotated from the rotary parameters, where it says nothing
/// but the widths of heads.
fn rotate_whole(config: &mut Raw) -> Result<(), ModelConfigError> {
    const FACTOR: &str = "partial_rotary_factor";
    let rotated = config.required("qk_rope_head_dim")?;
    let all = config.required("qk_nope_head_dim")? + rotated;
    for key in ministral3::PARAMETERS {
        let Some(own) = config.object(key)? else {
            continue;
        };
        let Some(factor) = own.number(FACTOR)? else {
            continue;
        };
        if (factor * all as f64).round() as usize != rotated {
            let message = format!("rotates {factor} of {all} columns, and not {rotated} of them");
            return Err(own.wrong(FACTOR, message));
        }
        let mut value = config.get(key).cloned().unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.remove(FACTOR);
        }
        config.put(key, value);
    }
    Ok(())
}

/// Rotary parameters where a file has none, as in the family's class.
fn class_parameters() -> Value {
    json!({
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        ministral3::BETA: 0.1,
    })
}

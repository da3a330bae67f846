//! GLM-4.7-Flash: DeepSeek's latent attention, with the experts of GLM-4.5.

use lockstep_types::{GroupWorth, LayerSpec, ModelConfigError, TensorNames};
use serde_json::{Value, json};

use super::{Family, Traits, deepseek, latent, nextn};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Glm4MoeLiteForCausalLM",
    model_type: "glm4_moe_lite",
    class: || {
        json!({
            "vocab_size": 154_880,
            "hidden_size": 2048,
            "intermediate_size": 10240,
            "num_hidden_layers": 47,
            "num_attention_heads": 20,
            "max_position_embeddings": 202_752,
            "rms_norm_eps": 1e-5,
            "moe_intermediate_size": 1536,
            "n_shared_experts": 1,
            "n_routed_experts": 64,
            "routed_scaling_factor": 1.8,
            "kv_lora_rank": 512,
            "q_lora_rank": 768,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "qk_nope_head_dim": 192,
            "num_experts_per_tok": 4,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &KEYS,
        draft_layer: Some(nextn::behind_the_last),
        only: || json!({"topk_method": "noaux_tc", "scoring_func": "sigmoid"}),
        ..Traits::LLAMA
    },
    layers,
};

/// Key for the kind of each layer's MLP.
const TYPES: &str = "mlp_layer_types";
const KEYS: [&str; 14] = latent::with_own([TYPES, "num_nextn_predict_layers", "rope_interleave"]);

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let (attention, dense) = (latent::attention(config)?, dense_layers(config)?);
    let routing = deepseek::corrected(config)?;
    let experts = latent::mixture(config, routing, Some(GroupWorth::TwoLargest))?;
    latent::layers(config, &attention, &experts, |number| dense[number])
}

/// Reads which layers are dense, by the list of transformers 5 or the number of older files: the
/// first one where neither is given.
fn dense_layers(config: &Raw) -> Result<Vec<bool>, ModelConfigError> {
    const FIRST: &str = "first_k_dense_replace";
    let (depth, first) = (super::dense::depth(config)?, config.count(FIRST)?);
    let by_number: Vec<bool> = (0..depth).map(|layer| layer < first.unwrap_or(1)).collect();
    let Some(list) = config.get(TYPES) else {
        return Ok(by_number);
    };
    let kind = |value: &Value| match value.as_str() {
        Some("dense") => Some(true),
        Some("sparse") => Some(false),
        _ => None,
    };
    let kinds = list.as_array().map(|all| all.iter().map(kind).collect());
    let kinds: Option<Vec<bool>> = kinds.flatten();
    match kinds.filter(|kinds| kinds.len() == depth) {
        None => {
            let message = format!("is no list of {depth} kinds, dense or sparse");
            Err(config.wrong(TYPES, message))
        }
        Some(kinds) if first.is_some() && kinds != by_number => Err(config.wrong(
            TYPES,
            format!("and `{FIRST}` contradict each other; remove one"),
        )),
        Some(kinds) => Ok(kinds),
    }
}

//! DeepSeek V2 and V3 and the models that are written as they are, such as Kimi-K2: latent
//! attention, and experts in groups.

use lockstep_types::{
    GroupWorth, LayerSpec, ModelConfigError, RouterWeights, Routing, TensorNames,
};
use serde_json::{Value, json};

use super::{Family, Traits, latent, nextn};
use crate::raw::Raw;

/// DeepSeek V2, V2.5 and V2-Lite.
pub(super) const V2: Family = Family {
    class_name: "DeepseekV2ForCausalLM",
    model_type: "deepseek_v2",
    class: || {
        json!({
            "vocab_size": 102_400,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "first_k_dense_replace": 0,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "routed_scaling_factor": 1.0,
            METHOD: GREEDY,
            "v_head_dim": 128,
            "moe_intermediate_size": 1407,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &OF_V2,
        only: || {
            json!({
                "moe_layer_freq": 1,
                "norm_topk_prob": false,
                "scoring_func": "softmax",
            })
        },
        ..Traits::LLAMA
    },
    layers: |config| {
        let routing = Routing {
            factor: factor(config)?,
            ..Routing::softmax(false)
        };
        let worth = match config.text(METHOD)?.unwrap_or(GREEDY) {
            GREEDY => None,
            "group_limited_greedy" => Some(GroupWorth::Largest),
            _ => {
                let remedy = "served are greedy and group_limited_greedy";
                return Err(config.unsupported(METHOD, remedy));
            }
        };
        layers(config, routing, worth)
    },
};

/// DeepSeek V3, V3.1 and R1.
pub(super) const V3: Family = Family {
    class_name: "DeepseekV3ForCausalLM",
    model_type: "deepseek_v3",
    class: class_of_v3,
    names: TensorNames::default,
    traits: TRAITS_OF_V3,
    layers: layers_of_v3,
};

/// Kimi-K2 inside of Kimi-K2.5, whose files give it a type of its own. Alone it says that it is a
/// DeepSeek V3.
pub(super) const KIMI_K2: Family = Family {
    class_name: "DeepseekV3ForCausalLM",
    model_type: "kimi_k2",
    class: class_of_v3,
    names: TensorNames::default,
    traits: TRAITS_OF_V3,
    layers: layers_of_v3,
};

/// Key of the way in which experts are chosen.
const METHOD: &str = "topk_method";
const GREEDY: &str = "greedy";

const OF_V2: [&str; 15] = latent::with_own([METHOD, "aux_loss_alpha", "ep_size", "seq_aux"]);
const OF_V3: [&str; 17] = latent::with_own([
    "aux_loss_alpha",
    "ep_size",
    // The model's own draft layers, which are not loaded.
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "rope_interleave",
    "seq_aux",
]);

const TRAITS_OF_V3: Traits = Traits {
    keys: &OF_V3,
    draft_layer: Some(nextn::behind_the_last),
    only: || {
        json!({
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            METHOD: "noaux_tc",
        })
    },
    ..Traits::LLAMA
};

fn class_of_v3() -> Value {
    json!({
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
    })
}

fn layers_of_v3(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let routing = corrected(config)?;
    layers(config, routing, Some(GroupWorth::TwoLargest))
}

/// Reads the rule of V3: corrected weights by sigmoids.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged.
pub(super) fn corrected(config: &Raw) -> Result<Routing, ModelConfigError> {
    Ok(Routing {
        weights: RouterWeights::Sigmoid,
        renormalized: config.flag("norm_topk_prob", true)?,
        factor: factor(config)?,
        corrected: true,
        groups: None,
    })
}

/// Reads the factor of the weights of experts.
///
/// # Errors
/// [`ModelConfigError`]: the value is no number above zero.
pub(super) fn factor(config: &Raw) -> Result<f32, ModelConfigError> {
    Ok(config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32)
}

fn layers(
    config: &Raw,
    routing: Routing,
    worth: Option<GroupWorth>,
) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let (attention, dense) = (latent::attention(config)?, latent::first_dense(config)?);
    let experts = latent::mixture(config, routing, worth)?;
    latent::layers(config, &attention, &experts, |number| number < dense)
}

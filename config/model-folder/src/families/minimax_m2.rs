//! MiniMax-M2: norms over all heads of q and of k, half of each head rotated, experts that are
//! chosen by corrected weights.

use lockstep_types::{ExpertsNames, Mlp, QkNorm, RouterWeights, Routing, TensorNames};
use serde_json::{Value, json};

use super::{Family, Traits, dense::Dense, experts};

pub(super) const FAMILY: Family = Family {
    class_name: "MiniMaxM2ForCausalLM",
    model_type: "minimax_m2",
    class: || {
        json!({
            "vocab_size": 200_064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196_608,
            "rope_theta": 5e6,
            "num_experts_per_tok": 8,
            "num_local_experts": 256,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[
            TYPES,
            "rotary_dim",
            // Of dense layers, and of shared experts, which no release has.
            "mlp_intermediate_size",
            "shared_moe_mode",
            // The model's own draft layers, which are not loaded.
            "mtp_transformer_layers",
            "num_mtp_modules",
            "use_mtp",
        ],
        only: || {
            json!({
                "layernorm_full_attention_beta": 1.0,
                "layernorm_linear_attention_beta": 1.0,
                "layernorm_mlp_beta": 1.0,
                "norm_topk_prob": true,
                "qk_norm_type": "per_layer",
                "scoring_func": "sigmoid",
                "use_qk_norm": true,
                "use_routing_bias": true,
            })
        },
        ..Traits::LLAMA
    },
    layers: |config| {
        let full = |kind: &Value| kind == 1;
        let are_full = |types: &Value| types.as_array().is_some_and(|types| types.iter().all(full));
        if config.get(TYPES).is_some_and(|types| !are_full(types)) {
            return Err(config.unsupported(TYPES, "linear attention is not served; all must be 1"));
        }
        let routing = Routing {
            weights: RouterWeights::Sigmoid,
            renormalized: true,
            factor: 1.0,
            corrected: true,
            groups: None,
        };
        let counts = ["num_local_experts", "num_experts"];
        let names = ExpertsNames::of_sparse_block();
        let experts = experts::read(config, &counts, "intermediate_size", routing, names)?;
        MINIMAX_M2.layers_with(config, |_| Mlp::Experts(experts.clone()))
    },
};

/// Key of each layer's kind of attention: 1 for softmax, 0 for linear attention.
const TYPES: &str = "attn_type_list";

const MINIMAX_M2: Dense = Dense {
    qk_norm: QkNorm::Whole,
    partly_rotated: true,
    no_bias: &["attention_bias", "mlp_bias"],
    ..Dense::LLAMA
};

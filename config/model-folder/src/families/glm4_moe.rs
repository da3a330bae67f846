//! GLM-4.5, 4.6 and 4.7: half of each head is rotated, and all but the first layers have experts
//! with a shared one beside them.

use lockstep_types::{
    ExpertsNames, GatedMlpNames, LayerSpec, Mlp, ModelConfigError, QkNorm, RouterWeights, Routing,
    SharedExpert, TensorNames,
};
use serde_json::json;

use super::{Family, Traits, dense::Dense, experts};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    class: || {
        json!({
            "vocab_size": 151_552,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        keys: &[
            "first_k_dense_replace",
            "n_group",
            "n_shared_experts",
            // The model's own draft layers, which are not loaded.
            "num_nextn_predict_layers",
            "routed_scaling_factor",
            "topk_group",
            "use_qk_norm",
        ],
        ..Traits::LLAMA
    },
    layers,
};

const GLM4_MOE: Dense = Dense {
    partly_rotated: true,
    no_bias: &["mlp_bias"],
    ..Dense::LLAMA
};

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    // With one group, all experts are in it.
    for key in ["n_group", "topk_group"] {
        if config.size(key)?.is_some_and(|groups| groups != 1) {
            return Err(config.unsupported(key, "experts in groups are not served; it must be 1"));
        }
    }
    let routing = Routing {
        weights: RouterWeights::Sigmoid,
        renormalized: config.flag("norm_topk_prob", true)?,
        factor: config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        corrected: true,
    };
    let counts = ["n_routed_experts", "num_local_experts", "num_experts"];
    let width = "moe_intermediate_size";
    let mut spec = experts::read(config, &counts, width, routing, ExpertsNames::of_mlp())?;
    let shared = config.count("n_shared_experts")?.unwrap_or(0);
    spec.shared = (shared > 0).then(|| SharedExpert {
        width: shared.saturating_mul(spec.width),
        gate: None,
        names: GatedMlpNames::below("mlp.shared_experts."),
    });
    let dense = config.count("first_k_dense_replace")?.unwrap_or(0);
    let gated = GLM4_MOE.gated(config)?;
    let family = Dense {
        qk_norm: match config.flag("use_qk_norm", false)? {
            true => QkNorm::PerHead,
            false => QkNorm::None,
        },
        ..GLM4_MOE
    };
    let mut layers = family.layers_with(config, |number| match number < dense {
        true => gated.clone(),
        false => Mlp::Experts(spec.clone()),
    })?;
    for attention in layers.iter_mut().filter_map(LayerSpec::attention_mut) {
        // `attention_bias` is about the inputs alone.
        attention.output_bias = false;
    }
    Ok(layers)
}

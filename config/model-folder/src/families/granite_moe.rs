//! Granite 3's mixtures of experts: Granite's factors, and experts whose matrices are stacked in
//! files.

use lockstep_types::{ExpertTensors, ExpertsNames, Mlp, Routing, TensorNames};
use serde_json::json;

use super::{Family, Traits, dense::Dense, experts, granite};

pub(super) const FAMILY: Family = Family {
    class_name: "GraniteMoeForCausalLM",
    model_type: "granitemoe",
    class: || {
        json!({
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        })
    },
    names: TensorNames::default,
    traits: Traits {
        multipliers: granite::multipliers,
        keys: &granite::KEYS,
        ..Traits::LLAMA
    },
    layers: |config| {
        let counts = ["num_local_experts", "num_experts"];
        let routing = Routing::softmax(true);
        let experts = experts::read(config, &counts, "intermediate_size", routing, names())?;
        let layers = Dense::LLAMA.layers_with(config, |_| Mlp::Experts(experts.clone()))?;
        granite::scaled(config, layers)
    },
};

/// Names of a mixture's tensors.
pub(super) fn names() -> ExpertsNames {
    let named = |name: &str| format!("block_sparse_moe.{name}");
    ExpertsNames {
        router: named("router.layer"),
        correction: String::new(),
        experts: ExpertTensors::Stacked {
            gate_up: named("input_linear.weight"),
            down: named("output_linear.weight"),
        },
    }
}

//! Forms in which the experts of one family are stored.

use std::collections::BTreeSet;

use lockstep_types::{ExpertTensors, ExpertsNames, LayerSpec, Mlp, ModelConfig};

/// Gives layers whose experts are stacked the names of single experts where these are `stored`: the
/// same family is stored in both forms.
pub(crate) fn stored_experts(model: &mut ModelConfig, stored: &BTreeSet<String>) {
    let names = &model.names;
    for (number, layer) in model.layers.iter_mut().enumerate() {
        stored_experts_of(layer, &names.layer(number), stored);
    }
}

/// Does so with the layer whose tensors have the prefix `prefix`.
pub(crate) fn stored_experts_of(layer: &mut LayerSpec, prefix: &str, stored: &BTreeSet<String>) {
    let Mlp::Experts(spec) = &mut layer.mlp else {
        return;
    };
    let ExpertTensors::Stacked { gate_up, .. } = &spec.names.experts else {
        return;
    };
    let single = ExpertsNames::of_mlp().experts;
    let ExpertTensors::Single {
        prefix: experts,
        expert,
    } = &single
    else {
        return;
    };
    let is_stored = |name: &str| stored.contains(&format!("{prefix}.{name}"));
    // A weight, or the integers of one.
    let weights = ["weight", "qweight", "weight_packed"];
    let gates = weights.map(|last| format!("{experts}.0.{}.{last}", expert.gate));
    if !is_stored(gate_up) && gates.iter().any(|gate| is_stored(gate)) {
        spec.names.experts = single;
    }
}

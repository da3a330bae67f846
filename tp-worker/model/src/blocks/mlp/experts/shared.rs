//! The expert that every position goes through: among the others, or as a gated MLP of its own.

use lockstep_types::{Activation, ExpertsSpec, GatedMlpSpec};

use crate::Shard;

/// Number of experts of the usual width that the shared one is made of. Experts that are split by
/// number are wider than what a rank has of the shared one, so that is none of them then.
pub(super) fn shared_within(spec: &ExpertsSpec, shard: &Shard) -> usize {
    match shard.splits_experts_by_number() {
        true => 0,
        false => spec.shared_count(),
    }
}

/// The shared expert as a gated MLP, where it is not made of experts of the usual width: where those
/// are split by number, and where it has a gate.
pub(super) fn shared_apart(spec: &ExpertsSpec, shard: &Shard) -> Option<GatedMlpSpec> {
    let shared = spec.shared.as_ref()?;
    let apart = shard.splits_experts_by_number() || shared.gate.is_some();
    apart.then(|| GatedMlpSpec {
        width: shared.width,
        activation: Activation::Silu,
        bias: false,
        names: shared.names.clone(),
    })
}

/// Name of the shared expert's gate, if it has one.
pub(super) fn gate_of(spec: &ExpertsSpec) -> Option<&str> {
    spec.shared.as_ref()?.gate.as_deref()
}

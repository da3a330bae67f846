//! Sizes of a mixture of experts on one rank.

use lockstep_types::{ExpertsSpec, ModelConfig};

use super::shared::{gate_of, shared_apart, shared_within};
use crate::{Shard, blocks::mlp::gated::GatedMlp};

/// Sizes of a layer's experts on one rank. Layers of equal sizes share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Experts that the router scores.
    pub count: usize,
    /// Experts that it chooses for a position.
    pub active: usize,
    /// Experts of the shared one, if it is not apart.
    pub shared: usize,
    /// Columns of this rank between the projections of one expert.
    pub columns: usize,
    /// Projections before these columns.
    pub projections: usize,
    /// Columns of this rank of a shared expert that is apart.
    pub apart: Option<usize>,
    /// True if that expert has a gate.
    pub gated: bool,
}

impl ExpertSizes {
    /// Returns the sizes on the rank of `shard`, in `model`.
    pub fn of(spec: &ExpertsSpec, model: &ModelConfig, shard: &Shard) -> Self {
        Self {
            hidden: model.hidden_size,
            count: spec.count,
            active: spec.active,
            shared: shared_within(spec, shard),
            columns: shard.expert(model, spec.width).len(),
            projections: spec.gate.projections(),
            apart: shared_apart(spec, shard).map(|shared| GatedMlp::columns(&shared, shard)),
            gated: gate_of(spec).is_some(),
        }
    }
}

//! The gated MLP: `down(silu(gate(x)) · up(x))` (Shazeer, arXiv:2002.05202).

use lockstep_backend::{Axis, Backend, BackendError, RmsNorm, Scatter};

use super::{
    LayerPlace, LayerShape, Linear,
    layer::SecondHalf,
    parts::{Convert, Form, Listed, Tensors},
};
use crate::{CollectiveKind, CollectiveStep, Topology, crossing::Crossing};

/// One rank's columns of one layer's MLP.
pub(crate) struct GatedMlp<F: Form> {
    /// Gate rows, then up rows.
    pub gate_up: Linear<F>,
    /// Its bias is on the first of all ranks alone.
    pub down: Linear<F>,
}

/// What lies between a layer's attention and its MLP.
pub(crate) enum Boundary<'a, T> {
    /// Both have the same rows.
    SameRows,
    /// The MLP has the rows of all DP ranks: they are gathered before it, and each
    /// DP rank takes its own of the sum behind it.
    AllRows {
        crossing: &'a Crossing,
        /// Normed residuals of all DP ranks, `[a, hidden]`.
        gathered: &'a mut T,
        /// This rank's part of what is added to the residuals, `[a, hidden]`.
        product: &'a mut T,
    },
}

impl GatedMlp<Listed> {
    /// The tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let (prefix, width) = (format!("{}.mlp", place.prefix), model.intermediate_size);
        let fused = |name| (name, width, vec![shard.mlp.clone()]);
        let gate_up = [fused("gate_proj"), fused("up_proj")];
        Self {
            gate_up: Linear::of_outputs(&prefix, &gate_up, model.hidden_size, model.mlp_bias),
            down: Linear::of_inputs(
                &format!("{prefix}.down_proj"),
                model.hidden_size,
                width,
                shard.mlp.clone(),
                model.mlp_bias && shard.topology.world.leads(),
            ),
        }
    }

    /// Around the MLP: with several DP ranks their rows come together and apart, otherwise
    /// the sum goes to all ranks.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Vec<CollectiveStep> {
        if topology.dp_size() == 1 {
            return vec![CollectiveStep::sum(axis, hidden)];
        }
        [CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
            .map(|kind| CollectiveStep::of_all(kind, axis, hidden))
            .into()
    }
}

impl<F: Form> Tensors<F> for GatedMlp<F> {
    type In<T: Form> = GatedMlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<GatedMlp<C::To>, C::Error> {
        Ok(GatedMlp {
            gate_up: self.gate_up.convert(to)?,
            down: self.down.convert(to)?,
        })
    }
}

impl<B: Backend> GatedMlp<B> {
    /// From the normed residual to the residual stream behind the layer, and that normed
    /// with `next`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn run(
        &self,
        backend: &mut B,
        shape: &LayerShape<B>,
        buffers: SecondHalf<'_, B::Tensor>,
        next: RmsNorm<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let SecondHalf {
            attended: _,
            residual,
            delta,
            normed,
            gate_up,
            activated,
            boundary,
        } = buffers;
        let (gated, down) = (self.gate_up.operand(), self.down.row_parallel(shape.axis));
        match boundary {
            Boundary::SameRows => {
                backend.gated_matmul(normed, gated, gate_up, activated);
                backend.matmul_add_rms_norm(activated, down, residual, delta, next, normed)
            }
            Boundary::AllRows {
                crossing,
                gathered,
                product,
            } => {
                let Crossing {
                    counts,
                    first,
                    rows,
                    ..
                } = crossing;
                backend.all_gather_rows(shape.axis, normed, *first, counts, gathered)?;
                backend.gated_matmul(gathered, gated, gate_up, activated);
                let scatter = Scatter { rows, product };
                backend
                    .matmul_scatter_add_rms_norm(activated, down, scatter, residual, next, normed)
            }
        }
    }
}

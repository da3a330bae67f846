//! The gated MLP: `down(silu(gate(x)) · up(x))` (Shazeer, arXiv:2002.05202).

use lockstep_backend::{Axis, Backend, BackendError, Holds, RmsNorm, Scatter};
use lockstep_types::{GatedMlpSpec, Mlp, ModelConfig};

use super::{
    LayerPlace, Linear,
    distinct::{distinct, place_of},
    parts::{Convert, Form, Listed, Tensors},
};
use crate::{
    CollectiveKind, CollectiveStep, Topology, blocks::allocate::Allocate, split::crossing::Crossing,
};

/// One rank's columns of one layer's MLP.
pub(crate) struct GatedMlp<F: Form> {
    /// Number of its buffers among those of [`mlp_widths`].
    pub buffers: usize,
    /// Gate rows, then up rows.
    pub gate_up: Linear<F>,
    /// Its bias is on the first of all ranks alone.
    pub down: Linear<F>,
}

/// Activations of an MLP, allocated once: `m` are this rank's columns, and `a` the rows of
/// all DP ranks.
pub(crate) struct MlpBuffers<T> {
    /// Gate and up projections, `[a, 2·m]`.
    pub gate_up: T,
    /// Activated, `[a, m]`.
    pub activated: T,
}

impl<T> MlpBuffers<T> {
    /// For `columns` of this rank and passes of at most `rows` rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        columns: usize,
        rows: usize,
    ) -> Result<Self, BackendError> {
        Ok(Self {
            gate_up: device.activations(rows, 2 * columns, Holds::Sum)?,
            activated: device.activations(rows, columns, Holds::Operand)?,
        })
    }
}

/// Activations that an MLP reads and writes.
pub(crate) struct MlpOperands<'a, T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: &'a mut T,
    /// Room for the MLP's sum, `[n, hidden]`.
    pub delta: &'a mut T,
    /// The normed residual stream, before the MLP and behind it, `[n, hidden]`.
    pub normed: &'a mut T,
    pub buffers: &'a mut MlpBuffers<T>,
    pub boundary: Boundary<'a, T>,
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
        let Mlp::Gated(GatedMlpSpec { width, bias }) = place.spec().mlp;
        let (prefix, columns) = (format!("{}.mlp", place.prefix), shard.mlp(width));
        let fused = |name| (name, width, vec![columns.clone()]);
        let gate_up = [fused("gate_proj"), fused("up_proj")];
        Self {
            buffers: place_of(&mlp_widths(model), &width),
            gate_up: Linear::of_outputs(&prefix, &gate_up, model.hidden_size, bias),
            down: Linear::of_inputs(
                &format!("{prefix}.down_proj"),
                model.hidden_size,
                width,
                columns,
                bias && shard.topology.world.leads(),
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

/// The widths of all layers' MLPs, each once.
pub(crate) fn mlp_widths(model: &ModelConfig) -> Vec<usize> {
    distinct(model.layers.iter().map(|layer| layer.mlp.width()))
}

impl<F: Form> Tensors<F> for GatedMlp<F> {
    type In<T: Form> = GatedMlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<GatedMlp<C::To>, C::Error> {
        Ok(GatedMlp {
            buffers: self.buffers,
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
        axis: Axis,
        operands: MlpOperands<'_, B::Tensor>,
        next: RmsNorm<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let MlpOperands {
            residual,
            delta,
            normed,
            buffers: MlpBuffers { gate_up, activated },
            boundary,
        } = operands;
        let (gated, down) = (self.gate_up.operand(), self.down.row_parallel(axis));
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
                backend.all_gather_rows(axis, normed, *first, counts, gathered)?;
                backend.gated_matmul(gathered, gated, gate_up, activated);
                let scatter = Scatter { rows, product };
                backend
                    .matmul_scatter_add_rms_norm(activated, down, scatter, residual, next, normed)
            }
        }
    }
}

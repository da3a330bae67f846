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
    /// Index of the layer's buffers in the list made from [`mlp_widths`].
    pub buffers: usize,
    /// Fused projection: gate rows, then up rows.
    pub gate_up: Linear<F>,
    /// Projection back to the residual stream. Only the first rank of the world holds its
    /// bias.
    pub down: Linear<F>,
}

/// Activations of an MLP, allocated once. `m` is the number of this rank's columns, and `a`
/// the number of rows of all DP ranks.
pub(crate) struct MlpBuffers<T> {
    /// Gate and up projections, `[a, 2·m]`.
    pub gate_up: T,
    /// Product of the activated gate and up, `[a, m]`.
    pub activated: T,
}

impl<T> MlpBuffers<T> {
    /// Allocates buffers for `columns` columns of this rank and passes of at most `rows`
    /// rows.
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

/// Rows at the boundary between a layer's attention and its MLP.
pub(crate) enum Boundary<'a, T> {
    /// Attention and MLP run over the same rows.
    SameRows,
    /// The MLP runs over the rows of all DP ranks. The rows are gathered before the MLP, and
    /// each DP rank takes its own rows of the sum behind it.
    AllRows {
        crossing: &'a Crossing,
        /// Normed residuals of all DP ranks, `[a, hidden]`.
        gathered: &'a mut T,
        /// This rank's part of the sum that is added to the residuals, `[a, hidden]`.
        product: &'a mut T,
    },
}

impl GatedMlp<Listed> {
    /// Lists the MLP tensors of the layer at `place`.
    pub fn listed(place: &LayerPlace<'_>) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let Mlp::Gated(GatedMlpSpec { width, bias }) = place.spec().mlp;
        let (prefix, columns) = (format!("{}.mlp", place.prefix), shard.mlp(width));
        let fused = |name| (name, width, vec![columns.clone()]);
        let gate_up = [fused("gate_proj"), fused("up_proj")];
        Self {
            buffers: place_of(&place.variants.mlps, &width),
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

    /// Returns the collectives around the MLP. With one DP rank, all ranks sum their results.
    /// With several, the rows of all DP ranks are gathered before the MLP, and the sum is
    /// scattered behind it.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Vec<CollectiveStep> {
        if topology.dp_size() == 1 {
            return vec![CollectiveStep::sum(axis, hidden)];
        }
        [CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
            .map(|kind| CollectiveStep::of_all(kind, axis, hidden))
            .into()
    }
}

/// Returns the distinct widths of a model's MLPs.
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
    /// Reads the normed residual, adds the MLP's output to the residual stream, and norms the
    /// sum with `next`.
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

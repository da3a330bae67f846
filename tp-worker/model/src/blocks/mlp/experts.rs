//! A mixture of experts (Shazeer et al., arXiv:1701.06538): a router chooses a few gated MLPs for
//! each position, and their weighed results are added up.
//!
//! Ranks split each expert by its columns, as they split a gated MLP. Every rank has the whole
//! router, so all ranks choose alike.

use lockstep_backend::{
    self as backend, Axis, Backend, BackendError, BlockEnd, ExpertSpace, ExpertsShape, Holds,
    MatrixRole, MatrixShape, Scatter, WeightFormat,
};
use lockstep_types::{ExpertsSpec, Quantization};

use crate::{
    Shard,
    blocks::{
        AllRows, Boundary, LayerPlace, Linear, MlpOperands,
        allocate::Allocate,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, MatrixPart, Tensors},
    },
    split::crossing::Crossing,
};

/// One rank's columns of the experts of one layer.
pub(crate) struct Experts<F: Form> {
    /// Index of the layer's buffers, one for each of [`ExpertSizes`].
    pub buffers: usize,
    /// Number of experts that a position goes through.
    pub active: usize,
    /// True if the weights of a position's experts are divided by their sum.
    pub renormalized: bool,
    /// Router, whole on every rank, `[experts, hidden]`.
    pub router: F::Matrix,
    /// Gate rows, then up rows of each expert.
    pub gate_up: Vec<F::Matrix>,
    /// Projection of each expert back to the residual stream.
    pub down: Vec<F::Matrix>,
}

/// Sizes of a layer's experts on one rank. Layers of equal sizes share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    hidden: usize,
    count: usize,
    active: usize,
    /// Columns of this rank between the projections of one expert.
    columns: usize,
}

/// Activations of a mixture of experts, allocated once. `a` is the number of rows of all DP
/// ranks, and `m` the number of this rank's columns.
pub(crate) struct ExpertBuffers<T> {
    active: usize,
    /// Scores of the experts, `[a, experts]`.
    scores: T,
    /// Gate and up projections, `[a·active, 2·m]`.
    gate_up: T,
    /// Product of the activated gate and up, `[a·active, m]`.
    activated: T,
    /// Results of the experts, `[a·active, hidden]`.
    products: T,
}

impl ExpertSizes {
    /// Returns the sizes on the rank of `shard`, in a model of width `hidden`.
    pub fn of(spec: &ExpertsSpec, hidden: usize, shard: &Shard) -> Self {
        Self {
            hidden,
            count: spec.count,
            active: spec.active,
            columns: shard.mlp(spec.width).len(),
        }
    }

    /// Returns the shape of the experts, in a model that is loaded with `quantization`.
    pub fn shape(&self, quantization: Quantization) -> ExpertsShape {
        let matrix = |rows, cols| MatrixShape {
            rows,
            cols,
            role: MatrixRole::Projection,
            format: WeightFormat::of(quantization, MatrixRole::Projection),
        };
        ExpertsShape {
            count: self.count,
            active: self.active,
            gate_up: matrix(2 * self.columns, self.hidden),
            down: matrix(self.hidden, self.columns),
        }
    }
}

impl<T> ExpertBuffers<T> {
    /// Allocates buffers for passes of at most `rows` rows. Each row may take its own experts, so
    /// there is room for all choices of all rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        sizes: &ExpertSizes,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let ExpertSizes {
            hidden,
            count,
            active,
            columns,
        } = *sizes;
        let choices = rows.saturating_mul(active);
        Ok(Self {
            active,
            scores: device.activations(rows, count, Holds::Sum)?,
            gate_up: device.activations(choices, 2 * columns, Holds::Sum)?,
            activated: device.activations(choices, columns, Holds::Operand)?,
            products: device.activations(choices, hidden, Holds::Sum)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.scores, rows);
        for choices in [&mut self.gate_up, &mut self.activated, &mut self.products] {
            backend.set_rows(choices, rows * self.active);
        }
    }
}

impl Experts<Listed> {
    /// Lists the tensors of the experts that `spec` describes, in the layer at `place`.
    /// `variants` are the distinct sizes of the model's mixtures of experts.
    pub fn listed(place: &LayerPlace<'_>, spec: &ExpertsSpec, variants: &[ExpertSizes]) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let &ExpertsSpec {
            count,
            active,
            width,
            renormalized,
            ref names,
        } = spec;
        let (hidden, columns) = (model.hidden_size, shard.mlp(width));
        let named =
            |expert: usize, name: &str| place.name(&format!("{}.{expert}.{name}", names.experts));
        let gate_up = |expert: usize| {
            let parts = [&names.expert.gate, &names.expert.up].map(|name| Fused {
                name: named(expert, name),
                rows: width,
                taken: vec![columns.clone()],
            });
            Linear::of_outputs(&parts, hidden, false).weight
        };
        let down = |expert: usize| {
            let name = named(expert, &names.expert.down);
            Linear::of_inputs(&name, hidden, width, columns.clone(), false).weight
        };
        Self {
            buffers: place_of(variants, &ExpertSizes::of(spec, hidden, shard)),
            active,
            renormalized,
            router: MatrixPart::router(&place.name(&names.router), count, hidden),
            gate_up: (0..count).map(gate_up).collect(),
            down: (0..count).map(down).collect(),
        }
    }

    /// Returns the number of elements that a position is multiplied with.
    pub fn products(&self) -> usize {
        let experts = self.gate_up.iter().chain(&self.down);
        let elements: usize = experts.map(MatrixPart::elements).sum();
        elements / self.gate_up.len().max(1) * self.active + self.router.elements()
    }
}

impl<F: Form> Tensors<F> for Experts<F> {
    type In<T: Form> = Experts<T>;

    /// Converts the experts one after the other, as they lie in files.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Experts<C::To>, C::Error> {
        let router = to.matrix(&self.router)?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for (both, back) in self.gate_up.iter().zip(&self.down) {
            gate_up.push(to.matrix(both)?);
            down.push(to.matrix(back)?);
        }
        Ok(Experts {
            buffers: self.buffers,
            active: self.active,
            renormalized: self.renormalized,
            router,
            gate_up,
            down,
        })
    }
}

impl<B: Backend> Experts<B> {
    /// Reads the residual stream as `normed` has it, adds the experts' output to the stream, and
    /// ends the block with `end`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] on a device without mixtures of
    /// experts.
    pub fn run(
        &self,
        backend: &mut B,
        axis: Axis,
        operands: MlpOperands<'_, B::Tensor>,
        buffers: &mut ExpertBuffers<B::Tensor>,
        end: BlockEnd<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let MlpOperands {
            residual,
            delta,
            normed,
            boundary,
        } = operands;
        match boundary {
            Boundary::SameRows => {
                self.mix(backend, normed, buffers, delta)?;
                backend.all_reduce(axis, delta)?;
                backend.end_block(residual, Some(delta), end, normed);
                Ok(())
            }
            Boundary::AllRows {
                crossing,
                rows: AllRows { gathered, product },
            } => {
                let Crossing {
                    counts,
                    first,
                    rows,
                    ..
                } = crossing;
                backend.all_gather_rows(axis, normed, *first, counts, gathered)?;
                self.mix(backend, gathered, buffers, product)?;
                let scatter = Scatter { rows, product };
                backend.scatter_end_block(axis, scatter, residual, end, normed)
            }
        }
    }

    /// Writes this rank's part of the experts' output over `input` to `out`.
    fn mix(
        &self,
        backend: &mut B,
        input: &B::Tensor,
        buffers: &mut ExpertBuffers<B::Tensor>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let ExpertBuffers {
            active: _,
            scores,
            gate_up,
            activated,
            products,
        } = buffers;
        backend.matmul(input, backend::Linear::unbiased(&self.router), scores);
        let experts = backend::Experts {
            active: self.active,
            renormalized: self.renormalized,
            gate_up: &self.gate_up,
            down: &self.down,
        };
        let space = ExpertSpace {
            gate_up,
            activated,
            products,
        };
        backend.experts(input, scores, experts, space, out)
    }
}

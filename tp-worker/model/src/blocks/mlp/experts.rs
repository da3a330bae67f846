//! A mixture of experts (Shazeer et al., arXiv:1701.06538): a router chooses a few gated MLPs for
//! each position, and their weighed results are added up.
//!
//! Ranks split each expert by its columns, as they split a gated MLP. Every rank has the whole
//! router, so all ranks choose alike.

use std::ops::Range;

use lockstep_backend::{
    self as backend, Axis, Backend, BackendError, BlockEnd, ExpertSpace, ExpertsShape, Holds,
    MatrixRole, MatrixShape, Scatter, WeightFormat,
};
use lockstep_types::{ExpertTensors, ExpertsSpec, GatedMlpNames, Quantization, Routing};

use crate::{
    Shard,
    blocks::{
        AllRows, Boundary, LayerPlace, Linear, MlpOperands,
        allocate::Allocate,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, MatrixPart, Tensors, VectorPart},
    },
    split::crossing::Crossing,
};

/// One rank's columns of the experts of one layer.
pub(crate) struct Experts<F: Form> {
    /// Index of the layer's buffers, one for each of [`ExpertSizes`].
    pub buffers: usize,
    /// Number of experts that are chosen for a position.
    pub active: usize,
    /// Number of experts that the shared one is made of.
    pub shared: usize,
    /// Rule by which they are chosen and weighed.
    pub routing: Routing,
    /// Router, whole on every rank, `[experts, hidden]`.
    pub router: F::Matrix,
    /// Values `[experts]` that are added for the choice; `None` if choices go by the weights.
    pub correction: Option<F::Vector>,
    /// Gate rows, then up rows of each expert. The last ones are those of the shared expert.
    pub gate_up: Vec<F::Matrix>,
    /// Projection of each expert back to the residual stream.
    pub down: Vec<F::Matrix>,
}

/// Sizes of a layer's experts on one rank. Layers of equal sizes share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    hidden: usize,
    /// Experts that the router scores, and that it chooses.
    count: usize,
    active: usize,
    /// Experts of the shared one.
    shared: usize,
    /// Columns of this rank between the projections of one expert.
    columns: usize,
}

/// Activations of a mixture of experts, allocated once. `a` is the number of rows of all DP
/// ranks, `m` the number of this rank's columns, and `t` the number of experts that a position goes
/// through.
pub(crate) struct ExpertBuffers<T> {
    taken: usize,
    /// Scores of the experts, `[a, experts]`.
    scores: T,
    /// Gate and up projections, `[a·t, 2·m]`.
    gate_up: T,
    /// Product of the activated gate and up, `[a·t, m]`.
    activated: T,
    /// Results of the experts, `[a·t, hidden]`.
    products: T,
}

impl ExpertSizes {
    /// Returns the sizes on the rank of `shard`, in a model of width `hidden`.
    pub fn of(spec: &ExpertsSpec, hidden: usize, shard: &Shard) -> Self {
        Self {
            hidden,
            count: spec.count,
            active: spec.active,
            shared: spec.shared_count(),
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
            count: self.count + self.shared,
            active: self.active + self.shared,
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
            shared,
            columns,
        } = *sizes;
        let taken = active + shared;
        let choices = rows.saturating_mul(taken);
        Ok(Self {
            taken,
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
            backend.set_rows(choices, rows * self.taken);
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
            routing,
            ref shared,
            ref names,
        } = spec;
        let columns = shard.mlp(width);
        let of_one = Matrices {
            hidden: model.hidden_size,
            width,
            columns: columns.clone(),
        };
        let mut gate_up = Vec::with_capacity(spec.total());
        let mut down = Vec::with_capacity(spec.total());
        for expert in 0..count {
            let (both, back) = match &names.experts {
                ExpertTensors::Single {
                    prefix,
                    expert: own,
                } => {
                    let named = |name: &str| place.name(&format!("{prefix}.{expert}.{name}"));
                    of_one.part_of(1, 0, own, named)
                }
                ExpertTensors::Stacked { gate_up, down } => {
                    let tensors = [gate_up, down].map(|name| place.name(name));
                    of_one.stacked(count, expert, tensors)
                }
            };
            gate_up.push(both);
            down.push(back);
        }
        let parts = spec.shared_count();
        for (part, shared) in (0..parts).filter_map(|part| Some((part, shared.as_ref()?))) {
            let (both, back) = of_one.part_of(parts, part, &shared.names, |name| place.name(name));
            gate_up.push(both);
            down.push(back);
        }
        let correction = || VectorPart::whole(place.name(&names.correction), count);
        Self {
            buffers: place_of(variants, &ExpertSizes::of(spec, model.hidden_size, shard)),
            active,
            shared: parts,
            routing,
            router: MatrixPart::router(&place.name(&names.router), count, model.hidden_size),
            correction: routing.corrected.then(correction),
            gate_up,
            down,
        }
    }

    /// Returns the number of elements that a position is multiplied with.
    pub fn products(&self) -> usize {
        let experts = self.gate_up.iter().chain(&self.down);
        let elements: usize = experts.map(MatrixPart::elements).sum();
        let taken = self.active + self.shared;
        elements / self.gate_up.len().max(1) * taken + self.router.elements()
    }
}

/// Sizes of the matrices of one expert.
struct Matrices {
    hidden: usize,
    /// Columns between the projections, of all ranks and of this one.
    width: usize,
    columns: Range<usize>,
}

impl Matrices {
    /// Lists the tensors of one of `parts` experts whose matrices lie together, in the tensors of
    /// one gated MLP with the names `names`.
    fn part_of(
        &self,
        parts: usize,
        part: usize,
        names: &GatedMlpNames,
        named: impl Fn(&str) -> String,
    ) -> (MatrixPart, MatrixPart) {
        let first = part * self.width;
        let columns = first + self.columns.start..first + self.columns.end;
        let gate_up = [&names.gate, &names.up].map(|name| Fused {
            name: named(name),
            rows: parts * self.width,
            taken: vec![columns.clone()],
        });
        let width = parts * self.width;
        let down = Linear::of_inputs(&named(&names.down), self.hidden, width, columns, false);
        (
            Linear::of_outputs(&gate_up, self.hidden, false).weight,
            down.weight,
        )
    }

    /// Lists the matrices of expert `expert` of `count` whose tensors are stacked, gates and ups
    /// first.
    fn stacked(
        &self,
        count: usize,
        expert: usize,
        [gate_up, down]: [String; 2],
    ) -> (MatrixPart, MatrixPart) {
        let (first, columns) = (expert * 2 * self.width, &self.columns);
        let rows = |first: usize| first + columns.start..first + columns.end;
        let taken = vec![rows(first), rows(first + self.width)];
        let gate_up = MatrixPart::stacked(
            gate_up,
            (count * 2 * self.width, taken),
            (self.hidden, 0..self.hidden),
        );
        let taken = expert * self.hidden..(expert + 1) * self.hidden;
        let down = MatrixPart::stacked(
            down,
            (count * self.hidden, vec![taken]),
            (self.width, columns.clone()),
        );
        (gate_up, down)
    }
}

impl<F: Form> Tensors<F> for Experts<F> {
    type In<T: Form> = Experts<T>;

    /// Converts the experts one after the other, as they lie in files.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Experts<C::To>, C::Error> {
        let router = to.matrix(&self.router)?;
        let correction = to.optional(self.correction.as_ref())?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for (both, back) in self.gate_up.iter().zip(&self.down) {
            gate_up.push(to.matrix(both)?);
            down.push(to.matrix(back)?);
        }
        Ok(Experts {
            buffers: self.buffers,
            active: self.active,
            shared: self.shared,
            routing: self.routing,
            router,
            correction,
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
            taken: _,
            scores,
            gate_up,
            activated,
            products,
        } = buffers;
        backend.matmul(input, backend::Linear::unbiased(&self.router), scores);
        let experts = backend::Experts {
            active: self.active,
            shared: self.shared,
            routing: self.routing,
            correction: self.correction.as_ref(),
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

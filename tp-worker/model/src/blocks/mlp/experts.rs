//! A mixture of experts (Shazeer et al., arXiv:1701.06538): a router chooses a few gated MLPs for
//! each position, and their weighed results are added up.
//!
//! Ranks split each expert by its columns, as they split a gated MLP; or groups of ranks have whole
//! experts of their own, of which nothing is added for positions that choose others. Every rank has
//! the whole router, so all ranks choose alike.

mod matrices;
mod shared;
mod sizes;
mod widest;

use lockstep_backend::{
    self as backend, Axis, Backend, BackendError, BlockEnd, ExpertSpace, ExpertsShape, Holds,
    Scatter,
};
use lockstep_types::{ExpertGate, ExpertsSpec, ModelConfig, Routing};

use super::gated::{GatedMlp, GatedMlpBuffers};
use crate::{
    blocks::{
        AllRows, Boundary, LayerPlace, MlpOperands,
        allocate::Allocate,
        distinct::place_of,
        parts::{Convert, Form, Listed, Listing as _, MatrixPart, Tensors, VectorPart},
    },
    split::crossing::Crossing,
};
use matrices::Matrices;
use shared::{gate_of, shared_apart, shared_within};
pub(super) use sizes::ExpertSizes;
use widest::widest;

/// One rank's columns of its experts of one layer.
pub(crate) struct Experts<F: Form> {
    /// Index of the layer's buffers, one for each of [`ExpertSizes`].
    pub buffers: usize,
    /// Number of experts that the router scores.
    pub scored: usize,
    /// Number of the first of these that the rank has.
    pub first: usize,
    /// Number of experts that are chosen for a position.
    pub active: usize,
    /// Number of experts that the shared one is made of; 0 where it is [`Self::apart`].
    pub shared: usize,
    /// Rule by which they are chosen and weighed.
    pub routing: Routing,
    /// Router, whole on every rank, `[experts, hidden]`.
    pub router: F::Matrix,
    /// Bias of the router, `[experts]`.
    pub router_bias: Option<F::Vector>,
    /// Values `[experts]` that are added for the choice; `None` if choices go by the weights.
    pub correction: Option<F::Vector>,
    /// Factors `[experts]` of the weights; `None` if there are none.
    pub scales: Option<F::Vector>,
    /// Gate rows, then up rows of each expert, or up rows alone. The last ones are those of the
    /// shared expert.
    pub gate_up: Vec<F::Matrix>,
    /// Biases of all of them, one expert behind the other.
    pub gate_up_bias: Option<F::Vector>,
    /// Function from gate and up to the columns behind them.
    pub gate: ExpertGate,
    /// Projection of each expert back to the residual stream.
    pub down: Vec<F::Matrix>,
    /// Biases of these projections, likewise. Only the first of the ranks that split these experts
    /// holds them.
    pub down_bias: Option<F::Vector>,
    /// The shared expert where it has a gate, or experts are split by number: all ranks split its
    /// columns.
    pub apart: Option<GatedMlp<F>>,
    /// Gate of that expert, whole on every rank, `[1, hidden]`.
    pub shared_gate: Option<F::Matrix>,
}

/// Activations of a mixture of experts, allocated once. `a` is the number of rows of all DP
/// ranks, `m` the number of this rank's columns, and `t` the number of experts that a position goes
/// through.
pub(crate) struct ExpertBuffers<T> {
    taken: usize,
    /// Scores of the experts, `[a, experts]`.
    scores: T,
    /// Gate and up projections, `[a·t, 2·m]`, or `[a·t, m]` without gates.
    gate_up: T,
    /// Product of the activated gate and up, `[a·t, m]`.
    activated: T,
    /// Results of the experts, `[a·t, hidden]`.
    products: T,
    /// Activations of a shared expert that is apart, and its result, `[a, hidden]`.
    apart: Option<(GatedMlpBuffers<T>, T)>,
    /// Gate of that expert, `[a, 1]`.
    shared_gate: Option<T>,
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
            projections,
            apart,
            gated,
        } = *sizes;
        let taken = active + shared;
        let choices = rows.saturating_mul(taken);
        let apart = apart.map(|columns| -> Result<_, BackendError> {
            let buffers = GatedMlpBuffers::new(device, columns, rows)?;
            Ok((buffers, device.activations(rows, hidden, Holds::Sum)?))
        });
        Ok(Self {
            apart: apart.transpose()?,
            shared_gate: match gated {
                true => Some(device.activations(rows, 1, Holds::Sum)?),
                false => None,
            },
            taken,
            scores: device.activations(rows, count, Holds::Sum)?,
            gate_up: device.activations(choices, projections * columns, Holds::Sum)?,
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
        if let Some((buffers, product)) = &mut self.apart {
            buffers.set_rows(backend, rows);
            backend.set_rows(product, rows);
        }
        if let Some(gate) = &mut self.shared_gate {
            backend.set_rows(gate, rows);
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
            gate,
            routing,
            router_bias,
            ref scales,
            ref shared,
            ref names,
        } = spec;
        let (columns, held) = (shard.expert(model, width), shard.experts(count));
        let parts = shared_within(spec, shard);
        let of_one = Matrices {
            hidden: model.hidden_size,
            width,
            columns: columns.clone(),
            gated: gate.projections() > 1,
        };
        let mut gate_up = Vec::with_capacity(held.len() + parts);
        let mut down = Vec::with_capacity(held.len() + parts);
        for expert in held.clone() {
            let (both, back) = of_one.of_expert(count, expert, place, &names.experts);
            gate_up.push(both);
            down.push(back);
        }
        for (part, shared) in (0..parts).filter_map(|part| Some((part, shared.as_ref()?))) {
            let (both, back) = of_one.part_of(parts, part, &shared.names, |name| place.name(name));
            gate_up.push(both);
            down.push(back);
        }
        let (first, experts) = (held.start, &names.experts);
        let [gate_up_bias, down_bias] = of_one.biases(count, held, place, experts);
        let router = place.name(&names.router);
        let gate_row = |gate: &str| MatrixPart::router(&place.name(gate), 1, model.hidden_size);
        let whole = |name: &str| VectorPart::whole(place.name(name), count);
        Self {
            buffers: place_of(variants, &ExpertSizes::of(spec, model, shard)),
            scored: count,
            first,
            active,
            shared: parts,
            routing,
            router: MatrixPart::router(&router, count, model.hidden_size),
            router_bias: router_bias.then(|| VectorPart::whole(format!("{router}.bias"), count)),
            correction: routing.corrected.then(|| whole(&names.correction)),
            scales: scales.as_deref().map(whole),
            gate_up,
            gate_up_bias,
            gate,
            down,
            down_bias,
            apart: shared_apart(spec, shard).map(|spec| GatedMlp::listed(place, &spec, &[])),
            shared_gate: gate_of(spec).map(gate_row),
        }
    }

    /// Returns the shape of the rank's experts, in `model`; `None` if there are none.
    pub fn shape(&self, model: &ModelConfig) -> Option<ExpertsShape> {
        Some(ExpertsShape {
            count: self.gate_up.len(),
            scored: self.scored,
            active: self.active + self.shared,
            gate_up: widest(&self.gate_up, model)?,
            down: widest(&self.down, model)?,
        })
    }

    /// Returns the number of elements that a position is multiplied with. Of experts that are split
    /// by number these are as many as the mean position chooses here.
    pub fn products(&self) -> usize {
        let experts = self.gate_up.iter().chain(&self.down);
        let elements: usize = experts.map(MatrixPart::elements).sum();
        let (all, taken) = (self.scored + self.shared, self.active + self.shared);
        let apart = self.apart.as_ref().map_or(0, GatedMlp::elements);
        let gate = self.shared_gate.as_ref().map_or(0, MatrixPart::elements);
        elements / all.max(1) * taken + self.router.elements() + apart + gate
    }
}

impl<F: Form> Tensors<F> for Experts<F> {
    type In<T: Form> = Experts<T>;

    /// Converts the experts one after the other, as they lie in files.
    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Experts<C::To>, C::Error> {
        let router = to.matrix(&self.router)?;
        let router_bias = to.optional(self.router_bias.as_ref())?;
        let correction = to.optional(self.correction.as_ref())?;
        let scales = to.optional(self.scales.as_ref())?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for (both, back) in self.gate_up.iter().zip(&self.down) {
            gate_up.push(to.matrix(both)?);
            down.push(to.matrix(back)?);
        }
        let gate_up_bias = to.optional(self.gate_up_bias.as_ref())?;
        let down_bias = to.optional(self.down_bias.as_ref())?;
        let apart = self.apart.convert(to)?;
        let shared_gate = to.optional_matrix(self.shared_gate.as_ref())?;
        Ok(Experts {
            buffers: self.buffers,
            scored: self.scored,
            first: self.first,
            active: self.active,
            shared: self.shared,
            routing: self.routing,
            router,
            router_bias,
            correction,
            scales,
            gate_up,
            gate_up_bias,
            gate: self.gate,
            down,
            down_bias,
            apart,
            shared_gate,
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
            places: _,
            boundary,
        } = operands;
        match boundary {
            Boundary::SameRows => {
                self.mix(backend, normed, None, buffers, delta)?;
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
                self.mix(backend, gathered, None, buffers, product)?;
                let scatter = Scatter { rows, product };
                backend.scatter_end_block(axis, scatter, residual, end, normed)
            }
        }
    }

    /// Writes this rank's part of the experts' output over `input` to `out`. The router reads
    /// `scored`, or the input. The content of `input` is unspecified afterwards.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on a device without mixtures of experts.
    pub fn mix(
        &self,
        backend: &mut B,
        input: &mut B::Tensor,
        scored: Option<&B::Tensor>,
        buffers: &mut ExpertBuffers<B::Tensor>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let ExpertBuffers {
            taken: _,
            scores,
            gate_up,
            activated,
            products,
            apart,
            shared_gate,
        } = buffers;
        let router = backend::Linear {
            weight: &self.router,
            bias: self.router_bias.as_ref(),
        };
        backend.matmul(scored.unwrap_or(input), router, scores);
        let experts = backend::Experts {
            scored: self.scored,
            first: self.first,
            active: self.active,
            shared: self.shared,
            routing: self.routing,
            correction: self.correction.as_ref(),
            scales: self.scales.as_ref(),
            gate_up: &self.gate_up,
            gate_up_bias: self.gate_up_bias.as_ref(),
            gate: self.gate,
            down: &self.down,
            down_bias: self.down_bias.as_ref(),
        };
        let space = ExpertSpace {
            gate_up,
            activated,
            products,
        };
        backend.experts(input, scores, experts, space, out)?;
        match (&self.apart, apart) {
            (Some(shared), Some((buffers, product))) => {
                let gate = self.shared_gate.as_ref().zip(shared_gate.as_mut());
                shared.add_part(backend, input, gate, buffers, product, out)
            }
            _ => Ok(()),
        }
    }
}

//! A gated MLP and a mixture of experts side by side, whose outputs are normed and added.
//!
//! Ranks split both as they split each alone. Norms need whole sums, so there is an exchange for
//! each of the two.

use lockstep_backend::{Axis, Backend, BackendError, BlockEnd, Holds, Rows};
use lockstep_types::ParallelMlpSpec;

use super::experts::{ExpertBuffers, ExpertSizes, Experts};
use super::gated::{GatedMlp, GatedMlpBuffers};
use crate::{
    CollectiveKind, CollectiveStep, Topology,
    blocks::{
        AllRows, Boundary, LayerPlace, MlpOperands, Norm,
        allocate::Allocate,
        parts::{Convert, Form, Listed, Tensors, VectorPart},
    },
    split::crossing::Crossing,
};

/// One rank's part of both.
pub(crate) struct ParallelMlp<F: Form> {
    /// Width of the residual stream.
    pub hidden: usize,
    pub gated: GatedMlp<F>,
    /// Norm of the gated MLP's output.
    pub gated_output_norm: Norm<F>,
    pub experts: Experts<F>,
    /// Norm of the residual stream that experts read.
    pub experts_norm: Norm<F>,
    /// Norm of the residual stream that the router reads.
    pub router_norm: Norm<F>,
    /// Norm of the output of all experts.
    pub experts_output_norm: Norm<F>,
}

/// Activations between both, allocated once. `a` is the number of rows of all DP ranks.
pub(crate) struct ParallelBuffers<T> {
    /// Norm of the residual stream for experts, `[a, hidden]`.
    experts_input: T,
    /// Norm of the residual stream for the router, `[a, hidden]`.
    router_input: T,
    /// Router inputs of all DP ranks, `[a, hidden]`.
    router_rows: T,
    /// Output of the experts, `[a, hidden]`.
    experts_output: T,
}

/// Buffers of a layer that has both.
pub(crate) struct Spaces<'a, T> {
    pub gated: &'a mut GatedMlpBuffers<T>,
    pub experts: &'a mut ExpertBuffers<T>,
    pub own: Option<&'a mut ParallelBuffers<T>>,
}

impl<T> ParallelBuffers<T> {
    /// Allocates buffers for passes of at most `rows` rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        hidden: usize,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let mut operands = || device.activations(rows, hidden, Holds::Operand);
        Ok(Self {
            experts_input: operands()?,
            router_input: operands()?,
            router_rows: operands()?,
            experts_output: device.activations(rows, hidden, Holds::Sum)?,
        })
    }

    /// Sets the row count of the buffers for rows of all DP ranks.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.router_rows, rows);
        backend.set_rows(&mut self.experts_output, rows);
    }

    /// Sets the row count of the buffers for rows of this DP rank.
    pub fn set_own_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.experts_input, rows);
        backend.set_rows(&mut self.router_input, rows);
    }
}

impl ParallelMlp<Listed> {
    /// Lists the tensors of both, in the layer at `place`. They find their buffers among `gated` and
    /// `experts`, the variants of the model's gated MLPs and mixtures.
    pub fn listed(
        place: &LayerPlace<'_>,
        spec: &ParallelMlpSpec,
        (gated, experts): (&[usize], &[ExpertSizes]),
    ) -> Self {
        let (model, number, eps) = (place.model, place.number, place.spec().rms_norm_eps);
        let (names, hidden) = (&spec.names, model.hidden_size);
        let of_stream = |name: &str| Norm::of_stream(model, number, &place.name(name), eps);
        let of_output = |name: &str| Norm::of_columns(&place.name(name), hidden, eps);
        let experts_norm = of_stream(&names.experts_norm);
        let router_norm = Norm {
            weight: VectorPart {
                over: (hidden as f32).sqrt(),
                ..VectorPart::whole(place.name(&names.router_scale), hidden)
            },
            bias: None,
            eps: experts_norm.eps,
        };
        Self {
            hidden,
            gated: GatedMlp::listed(place, &spec.gated, gated),
            gated_output_norm: of_output(&names.gated_output_norm),
            experts: Experts::listed(place, &spec.experts, experts),
            experts_norm,
            router_norm,
            experts_output_norm: of_output(&names.experts_output_norm),
        }
    }

    /// Returns the collectives of both, in a model of width `hidden`. With several DP ranks the sums
    /// are of the rows of all, since norms follow before rows part.
    pub fn collectives(hidden: usize, topology: Topology, axis: Axis) -> Vec<CollectiveStep> {
        if topology.dp_size() == 1 {
            return vec![CollectiveStep::sum(axis, hidden); 2];
        }
        let of_all = |kind| CollectiveStep::of_all(kind, axis, hidden);
        let (gather, sum) = (CollectiveKind::AllGather, CollectiveKind::AllReduce);
        [gather, sum, gather, gather, sum].map(of_all).into()
    }
}

impl<F: Form> Tensors<F> for ParallelMlp<F> {
    type In<T: Form> = ParallelMlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<ParallelMlp<C::To>, C::Error> {
        Ok(ParallelMlp {
            hidden: self.hidden,
            gated: self.gated.convert(to)?,
            gated_output_norm: self.gated_output_norm.convert(to)?,
            experts: self.experts.convert(to)?,
            experts_norm: self.experts_norm.convert(to)?,
            router_norm: self.router_norm.convert(to)?,
            experts_output_norm: self.experts_output_norm.convert(to)?,
        })
    }
}

impl<B: Backend> ParallelMlp<B> {
    /// Reads the residual stream, and what `normed` has of it, adds the output of both to the stream,
    /// and ends the block with `end`.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] on a device without mixtures of
    /// experts.
    pub fn run(
        &self,
        backend: &mut B,
        axis: Axis,
        operands: MlpOperands<'_, B::Tensor>,
        Spaces {
            gated,
            experts,
            own,
        }: Spaces<'_, B::Tensor>,
        end: BlockEnd<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let MlpOperands {
            residual,
            delta,
            normed,
            places: _,
            boundary,
        } = operands;
        let Some(own) = own else {
            let lost = "buffers of experts beside an MLP were not allocated: this is a bug";
            return Err(BackendError::Unsupported(lost.into()));
        };
        self.experts_norm
            .run(backend, residual, &mut own.experts_input);
        self.router_norm
            .run(backend, residual, &mut own.router_input);
        let ParallelBuffers {
            experts_input,
            router_input,
            router_rows,
            experts_output,
        } = own;
        match boundary {
            Boundary::SameRows => {
                self.gated.product(backend, normed, gated, delta);
                backend.all_reduce(axis, delta)?;
                let scored = Some(&*router_input);
                self.experts
                    .mix(backend, experts_input, scored, experts, experts_output)?;
                backend.all_reduce(axis, experts_output)?;
                self.join(backend, delta, experts_output, normed);
            }
            Boundary::AllRows {
                crossing,
                rows: AllRows { gathered, product },
            } => {
                let Crossing { counts, first, .. } = crossing;
                backend.all_gather_rows(axis, normed, *first, counts, gathered)?;
                self.gated.product(backend, gathered, gated, product);
                backend.all_reduce(axis, product)?;
                backend.all_gather_rows(axis, experts_input, *first, counts, gathered)?;
                backend.all_gather_rows(axis, router_input, *first, counts, router_rows)?;
                let scored = Some(&*router_rows);
                self.experts
                    .mix(backend, gathered, scored, experts, experts_output)?;
                backend.all_reduce(axis, experts_output)?;
                self.join(backend, product, experts_output, gathered);
                backend.gather_rows(product, Rows::Range(crossing.own()), delta);
            }
        }
        backend.end_block(residual, Some(delta), end, normed);
        Ok(())
    }

    /// Adds the norms of both outputs in `gated`. `space` has its shape.
    fn join(
        &self,
        backend: &mut B,
        gated: &mut B::Tensor,
        experts: &B::Tensor,
        space: &mut B::Tensor,
    ) {
        let norms = [&self.gated_output_norm, &self.experts_output_norm].map(Norm::rms);
        backend.join_norms(gated, experts, norms, self.hidden, space);
    }
}

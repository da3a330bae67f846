//! The gated MLP: `down(f(gate(x)) · up(x))` with an activation `f` (Shazeer, arXiv:2002.05202).

use lockstep_backend::{self as backend, Axis, Backend, BackendError, BlockEnd, Holds, Scatter};
use lockstep_types::{Activation, GatedMlpSpec};

use crate::{
    Shard,
    blocks::{
        AllRows, Boundary, LayerContext, LayerPlace, Linear, MlpOperands,
        adapted::Input,
        allocate::Allocate,
        distinct::place_of,
        linear::Fused,
        parts::{Convert, Form, Listed, Tensors},
    },
    split::crossing::Crossing,
};

/// One rank's columns of one layer's MLP.
pub(crate) struct GatedMlp<F: Form> {
    /// Index of the layer's buffers, one for each number of columns.
    pub buffers: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Fused projection: gate rows, then up rows.
    pub gate_up: Linear<F>,
    /// Projection back to the residual stream. Only the first rank of the world holds its
    /// bias.
    pub down: Linear<F>,
}

/// Activations of a gated MLP, allocated once. `m` is the number of this rank's columns, and `a`
/// the number of rows of all DP ranks.
pub(crate) struct GatedMlpBuffers<T> {
    /// Gate and up projections, `[a, 2·m]`.
    pub gate_up: T,
    /// Product of the activated gate and up, `[a, m]`.
    pub activated: T,
}

impl<T> GatedMlpBuffers<T> {
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

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.gate_up, rows);
        backend.set_rows(&mut self.activated, rows);
    }
}

impl GatedMlp<Listed> {
    /// Lists the tensors of the MLP that `spec` describes, in the layer at `place`. `variants` are
    /// the distinct [`Self::columns`] of the model's gated MLPs.
    pub fn listed(place: &LayerPlace<'_>, spec: &GatedMlpSpec, variants: &[usize]) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let &GatedMlpSpec {
            width,
            activation,
            bias,
            ref names,
        } = spec;
        let columns = shard.mlp(width);
        let gate_up = [&names.gate, &names.up].map(|name| Fused {
            name: place.name(name),
            rows: width,
            taken: vec![columns.clone()],
        });
        Self {
            buffers: place_of(variants, &Self::columns(spec, shard)),
            activation,
            gate_up: Linear::of_outputs(&gate_up, model.hidden_size, bias),
            down: Linear::of_inputs(
                &place.name(&names.down),
                model.hidden_size,
                width,
                columns,
                bias && shard.topology.world.leads(),
            ),
        }
    }

    /// Returns the number of columns of the rank of `shard`. MLPs with as many share buffers.
    pub fn columns(spec: &GatedMlpSpec, shard: &Shard) -> usize {
        shard.mlp(spec.width).len()
    }
}

impl<F: Form> Tensors<F> for GatedMlp<F> {
    type In<T: Form> = GatedMlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<GatedMlp<C::To>, C::Error> {
        Ok(GatedMlp {
            buffers: self.buffers,
            activation: self.activation,
            gate_up: self.gate_up.convert(to)?,
            down: self.down.convert(to)?,
        })
    }
}

impl<B: Backend> GatedMlp<B> {
    /// Adds this rank's part of the output over `input` to `sum`, `[a, hidden]`, without an
    /// exchange, weighed by `σ(gate · x)` with a gate `[1, hidden]` and space `[a, 1]` if there is
    /// one. `product` is space of the sum's shape, and the content of `input` is unspecified
    /// afterwards.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on a device that has no output gates.
    pub fn add_part(
        &self,
        backend: &mut B,
        input: &mut B::Tensor,
        gate: Option<(&B::Matrix, &mut B::Tensor)>,
        buffers: &mut GatedMlpBuffers<B::Tensor>,
        product: &mut B::Tensor,
        sum: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let GatedMlpBuffers { gate_up, activated } = buffers;
        let gated = self.gate_up.operand();
        backend.gated_matmul(input, gated, self.activation, gate_up, activated);
        if let Some((weight, gate)) = gate {
            // The projection behind is linear, so it may be weighed before.
            backend.matmul(input, backend::Linear::unbiased(weight), gate);
            backend.sigmoid_gate(gate, activated)?;
        }
        let down = self.down.row_parallel(Axis::Alone);
        let end = BlockEnd {
            output: None,
            next: None,
        };
        backend.matmul_end_block(activated, down, sum, product, end, input)
    }

    /// Writes this rank's part of the output over `input` to `out`, `[a, hidden]`, without an
    /// exchange.
    pub fn product(
        &self,
        backend: &mut B,
        input: &B::Tensor,
        buffers: &mut GatedMlpBuffers<B::Tensor>,
        out: &mut B::Tensor,
    ) {
        let GatedMlpBuffers { gate_up, activated } = buffers;
        let gated = self.gate_up.operand();
        backend.gated_matmul(input, gated, self.activation, gate_up, activated);
        self.down.run(backend, activated, out);
    }

    /// Reads the residual stream as `normed` has it, adds the MLP's output to the stream, and ends
    /// the block with `end`.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn run(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        operands: MlpOperands<'_, B::Tensor>,
        buffers: &mut GatedMlpBuffers<B::Tensor>,
        end: BlockEnd<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let MlpOperands {
            residual,
            delta,
            normed,
            places,
            boundary,
        } = operands;
        let GatedMlpBuffers { gate_up, activated } = buffers;
        let (down, on) = (&self.down, (context, context.axis));
        match boundary {
            Boundary::SameRows => {
                let rows = &*normed;
                let input = Input { rows, places };
                self.open(backend, context, input, gate_up, activated)?;
                let rows = &*activated;
                let input = Input { rows, places };
                down.end_block(backend, on, input, residual, delta, end, normed)
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
                backend.all_gather_rows(context.axis, normed, *first, counts, gathered)?;
                let scatter = Scatter { rows, product };
                let rows = &*gathered;
                let input = Input { rows, places };
                self.open(backend, context, input, gate_up, activated)?;
                let rows = &*activated;
                let input = Input { rows, places };
                down.scatter_end_block(backend, on, input, scatter, residual, end, normed)
            }
        }
    }

    /// Writes the product of activated gate and up of `input` to `activated`.
    ///
    /// # Errors
    /// The errors of [`Linear::adapt`].
    fn open(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
        gate_up: &mut B::Tensor,
        activated: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        if input.places.is_none() {
            let gated = self.gate_up.operand();
            backend.gated_matmul(input.rows, gated, self.activation, gate_up, activated);
            return Ok(());
        }
        self.gate_up.run_adapted(backend, context, input, gate_up)?;
        backend.gate(gate_up, self.activation, activated);
        Ok(())
    }
}

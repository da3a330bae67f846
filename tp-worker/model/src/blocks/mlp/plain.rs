//! The MLP of two projections: `down(f(up(x)))` with an activation `f`.

use lockstep_backend::{Backend, BackendError, BlockEnd, Holds, Scatter};
use lockstep_types::{Activation, PlainMlpSpec};

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
pub(crate) struct PlainMlp<F: Form> {
    /// Index of the layer's buffers, one for each number of columns.
    pub buffers: usize,
    /// Activation between the projections.
    pub activation: Activation,
    /// Projection that is activated.
    pub up: Linear<F>,
    /// Projection back to the residual stream. Only the first rank of the world holds its
    /// bias.
    pub down: Linear<F>,
}

/// Activations of an MLP of two projections, allocated once. `m` is the number of this rank's columns, and `a`
/// the number of rows of all DP ranks.
pub(crate) struct PlainMlpBuffers<T> {
    /// Projection before the activation, `[a, m]`.
    pub up: T,
    /// Activated projection, `[a, m]`.
    pub activated: T,
}

impl<T> PlainMlpBuffers<T> {
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
            up: device.activations(rows, columns, Holds::Sum)?,
            activated: device.activations(rows, columns, Holds::Operand)?,
        })
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.up, rows);
        backend.set_rows(&mut self.activated, rows);
    }
}

impl PlainMlp<Listed> {
    /// Lists the tensors of the MLP that `spec` describes, in the layer at `place`. `variants` are
    /// the distinct [`Self::columns`] of the model's MLPs of this kind.
    pub fn listed(place: &LayerPlace<'_>, spec: &PlainMlpSpec, variants: &[usize]) -> Self {
        let LayerPlace { model, shard, .. } = *place;
        let &PlainMlpSpec {
            width,
            activation,
            bias,
            ref names,
        } = spec;
        let columns = shard.mlp(width);
        let up = Fused {
            name: place.name(&names.up),
            rows: width,
            taken: vec![columns.clone()],
        };
        Self {
            buffers: place_of(variants, &Self::columns(spec, shard)),
            activation,
            up: Linear::of_outputs(&[up], model.hidden_size, bias),
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
    pub fn columns(spec: &PlainMlpSpec, shard: &Shard) -> usize {
        shard.mlp(spec.width).len()
    }
}

impl<F: Form> Tensors<F> for PlainMlp<F> {
    type In<T: Form> = PlainMlp<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<PlainMlp<C::To>, C::Error> {
        Ok(PlainMlp {
            buffers: self.buffers,
            activation: self.activation,
            up: self.up.convert(to)?,
            down: self.down.convert(to)?,
        })
    }
}

impl<B: Backend> PlainMlp<B> {
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
        buffers: &mut PlainMlpBuffers<B::Tensor>,
        end: BlockEnd<'_, B::Vector>,
    ) -> Result<(), BackendError> {
        let MlpOperands {
            residual,
            delta,
            normed,
            places,
            boundary,
        } = operands;
        let PlainMlpBuffers { up, activated } = buffers;
        let (down, on) = (&self.down, (context, context.axis));
        let activation = self.activation;
        match boundary {
            Boundary::SameRows => {
                let rows = &*normed;
                self.up
                    .run_adapted(backend, context, Input { rows, places }, up)?;
                backend.activate(up, activation, activated);
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
                self.up
                    .run_adapted(backend, context, Input { rows, places }, up)?;
                backend.activate(up, activation, activated);
                let rows = &*activated;
                let input = Input { rows, places };
                down.scatter_end_block(backend, on, input, scatter, residual, end, normed)
            }
        }
    }
}

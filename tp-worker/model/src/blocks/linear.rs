//! A linear projection, split over ranks by its outputs or by its inputs (Megatron,
//! arXiv:1909.08053).

use std::ops::Range;

use lockstep_backend::{
    self as backend, Axis, Backend, BackendError, BlockEnd, MatrixRole, RowParallel, Scatter,
};

use super::{
    LayerContext,
    adapted::Input,
    parts::{Convert, Form, Listed, MatrixPart, TensorRows, Tensors, VectorPart},
};

/// A matrix `[out, in]` with its bias `[out]`, if it has one.
pub(crate) struct Linear<F: Form> {
    pub weight: F::Matrix,
    pub bias: Option<F::Vector>,
    /// Number of the projection among those of the model that adapters may add to; `None` if they
    /// may not.
    pub adapted: Option<usize>,
}

/// A projection that is fused with others on the device.
pub(crate) struct Fused {
    /// Name of its tensor without `.weight`. Projections of one name lie in one tensor, one
    /// below the other.
    pub name: String,
    /// Number of its outputs in the checkpoint.
    pub rows: usize,
    /// The outputs that this rank takes.
    pub taken: Vec<Range<usize>>,
}

impl Fused {
    /// Lists the outputs `taken` of a projection of `rows` outputs.
    pub fn of(name: String, rows: usize, taken: Vec<Range<usize>>) -> Self {
        Self { name, rows, taken }
    }
}

impl Linear<Listed> {
    /// Lists a column-parallel projection: some outputs of each of `parts`, one below the
    /// other, over all `inputs`.
    pub fn of_outputs(parts: &[Fused], inputs: usize, bias: bool) -> Self {
        let tensors = |kind: &str| -> Vec<_> {
            let tensors = parts.chunk_by(|a, b| a.name == b.name);
            tensors.map(|parts| tensor(parts, kind)).collect()
        };
        Self {
            weight: MatrixPart {
                tensors: tensors("weight"),
                width: inputs,
                columns: 0..inputs,
                role: MatrixRole::Projection,
            },
            bias: bias.then(|| VectorPart {
                tensors: tensors("bias"),
                plus_one: false,
                stack: 1,
                ones: 0,
                over: 1.0,
            }),
            adapted: None,
        }
    }

    /// Lists a row-parallel projection: all `outputs` over the inputs `taken`. Ranks sum
    /// their results, so only one of them may hold the bias.
    pub fn of_inputs(
        name: &str,
        outputs: usize,
        inputs: usize,
        taken: Range<usize>,
        bias: bool,
    ) -> Self {
        Self {
            weight: MatrixPart {
                tensors: vec![TensorRows::of(
                    format!("{name}.weight"),
                    outputs,
                    vec![Range {
                        start: 0,
                        end: outputs,
                    }],
                )],
                width: inputs,
                columns: taken,
                role: MatrixRole::Projection,
            },
            bias: bias.then(|| VectorPart::whole(format!("{name}.bias"), outputs)),
            adapted: None,
        }
    }

    /// Lists a projection that is not split: all outputs over all inputs.
    pub fn whole(name: &str, outputs: usize, inputs: usize, bias: bool) -> Self {
        Self::of_inputs(name, outputs, inputs, 0..inputs, bias)
    }
}

/// Returns the rows that are taken of the tensor in which all `parts` lie, one below the other.
fn tensor(parts: &[Fused], kind: &str) -> TensorRows {
    let mut found = TensorRows::of(format!("{}.{kind}", parts[0].name), 0, Vec::new());
    for part in parts {
        let taken = part.taken.iter();
        let taken = taken.map(|range| found.rows + range.start..found.rows + range.end);
        found.taken.extend(taken);
        found.rows += part.rows;
    }
    found
}

impl<F: Form> Tensors<F> for Linear<F> {
    type In<T: Form> = Linear<T>;

    fn convert<C: Convert<F>>(&self, to: &mut C) -> Result<Linear<C::To>, C::Error> {
        Ok(Linear {
            weight: to.matrix(&self.weight)?,
            bias: to.optional(self.bias.as_ref())?,
            adapted: self.adapted,
        })
    }
}

impl<B: Backend> Linear<B> {
    /// Returns the projection as the backend's operations take it.
    pub fn operand(&self) -> backend::Linear<'_, B::Matrix, B::Vector> {
        backend::Linear {
            weight: &self.weight,
            bias: self.bias.as_ref(),
        }
    }

    /// Returns the projection for an operation whose inputs are split over the ranks of
    /// `axis`.
    pub fn row_parallel(&self, axis: Axis) -> RowParallel<'_, B::Matrix, B::Vector> {
        RowParallel {
            axis,
            part: self.operand(),
        }
    }

    /// Multiplies `input` `[n, in]` into `out` `[n, out]`.
    pub fn run(&self, backend: &mut B, input: &B::Tensor, out: &mut B::Tensor) {
        backend.matmul(input, self.operand(), out);
    }

    /// Multiplies `input` `[n, in]` into `out` `[n, out]`, and adds what the rows' adapters have.
    ///
    /// # Errors
    /// The errors of [`Self::adapt`].
    pub fn run_adapted(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        self.run(backend, input.rows, out);
        self.adapt(backend, context, input, out)
    }

    /// Adds what the adapters of the rows of `input` have to this projection of them.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] on a device without adapters; [`BackendError::OutOfMemory`]
    /// for working memory.
    pub fn adapt(
        &self,
        backend: &mut B,
        context: &LayerContext<B>,
        input: Input<'_, B::Tensor>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let adapters = self.adapted.and_then(|own| context.adapters.get(own));
        match input.places.zip(adapters) {
            None => Ok(()),
            Some((places, adapters)) => backend.add_adapters(input.rows, adapters, places, out),
        }
    }

    /// Ends a block with this projection, which is split over the ranks of `axis`: see
    /// [`backend::Exchange::matmul_end_block`]. Each rank adds its part of what adapters have before
    /// the parts are summed.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; the errors of [`Self::adapt`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn end_block(
        &self,
        backend: &mut B,
        (context, axis): (&LayerContext<B>, Axis),
        input: Input<'_, B::Tensor>,
        residual: &mut B::Tensor,
        delta: &mut B::Tensor,
        end: BlockEnd<'_, B::Vector>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        if input.places.is_none() {
            let part = self.row_parallel(axis);
            return backend.matmul_end_block(input.rows, part, residual, delta, end, out);
        }
        self.run_adapted(backend, context, input, delta)?;
        backend.all_reduce(axis, delta)?;
        backend.end_block(residual, Some(delta), end, out);
        Ok(())
    }

    /// Does the same where each rank takes rows of its own of the sum: see
    /// [`backend::Exchange::matmul_scatter_end_block`].
    ///
    /// # Errors
    /// The errors of [`Self::end_block`].
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn scatter_end_block(
        &self,
        backend: &mut B,
        (context, axis): (&LayerContext<B>, Axis),
        input: Input<'_, B::Tensor>,
        scatter: Scatter<'_, B::Tensor>,
        residual: &mut B::Tensor,
        end: BlockEnd<'_, B::Vector>,
        out: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        if input.places.is_none() {
            let part = self.row_parallel(axis);
            return backend.matmul_scatter_end_block(input.rows, part, scatter, residual, end, out);
        }
        self.run_adapted(backend, context, input, scatter.product)?;
        backend.scatter_end_block(axis, scatter, residual, end, out)
    }
}

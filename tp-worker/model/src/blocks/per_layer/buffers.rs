//! Activations of per-layer embeddings, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};
use lockstep_types::ModelConfig;

use crate::blocks::allocate::Allocate;

/// Activations of per-layer embeddings. `n` is the number of tokens of this DP rank, and `w` the
/// number of columns of a layer.
pub(crate) struct PerLayerBuffers<T> {
    /// Rows of the table of every token, with columns for all layers, `[n, layers·w]`.
    pub embedded: T,
    /// The residual stream as it begins, `[n, hidden]`.
    pub first: T,
    /// A layer's input, `[n, w]`.
    pub input: T,
    /// Inputs of the wanted rows alone, at the end of a pass.
    wanted: T,
    /// A layer's projection of embeddings, then its gate, `[n, w]`.
    pub sums: T,
    /// Gate and input, `[n, 2·w]`.
    gate_up: T,
    /// Their product, `[n, w]`.
    pub operands: T,
}

/// Buffers that the end of a layer reads and writes.
pub(crate) struct PerLayerHalf<'a, T> {
    /// The layer's input.
    pub input: &'a T,
    pub sums: &'a mut T,
    pub gate_up: &'a mut T,
    pub operands: &'a mut T,
}

impl<T> PerLayerBuffers<T> {
    /// Allocates buffers for passes of `model` over at most `tokens` tokens; `None` for a model
    /// without such embeddings.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        tokens: usize,
    ) -> Result<Option<Self>, BackendError> {
        let Some(own) = &model.per_layer else {
            return Ok(None);
        };
        let mut sums = |width| device.activations(tokens, width, Holds::Sum);
        let (embedded, input) = (sums(own.width * model.layers.len())?, sums(own.width)?);
        let (wanted, gate_up) = (sums(own.width)?, sums(2 * own.width)?);
        Ok(Some(Self {
            embedded,
            input,
            wanted,
            sums: sums(own.width)?,
            gate_up,
            first: device.activations(tokens, model.hidden_size, Holds::Operand)?,
            operands: device.activations(tokens, own.width, Holds::Operand)?,
        }))
    }

    /// Sets the row count of all buffers.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for all in [&mut self.embedded, &mut self.first, &mut self.input] {
            backend.set_rows(all, rows);
        }
        self.set_half_rows(backend, rows);
    }

    fn set_half_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for half in [&mut self.wanted, &mut self.sums, &mut self.gate_up] {
            backend.set_rows(half, rows);
        }
        backend.set_rows(&mut self.operands, rows);
    }

    /// Returns the buffers for the end of a layer over every token.
    pub fn half(&mut self) -> PerLayerHalf<'_, T> {
        PerLayerHalf {
            input: &self.input,
            sums: &mut self.sums,
            gate_up: &mut self.gate_up,
            operands: &mut self.operands,
        }
    }

    /// Returns the buffers for the end of a layer over the `wanted` rows alone, to which the layer's
    /// input is copied. [`Self::set_rows`] restores the row counts.
    pub fn narrow<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        inputs: &B::Inputs,
        wanted: usize,
    ) -> PerLayerHalf<'_, T> {
        self.set_half_rows(backend, wanted);
        let rows = Rows::Wanted(inputs, 0..wanted);
        backend.gather_rows(&self.input, rows, &mut self.wanted);
        PerLayerHalf {
            input: &self.wanted,
            sums: &mut self.sums,
            gate_up: &mut self.gate_up,
            operands: &mut self.operands,
        }
    }
}

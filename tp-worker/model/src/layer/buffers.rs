//! Activations of a layer, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};

use super::LayerSizes;
use crate::allocate::Allocate;

/// One set of activations, reused by every layer and every pass.
pub(crate) struct LayerBuffers<T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: T,
    /// What a block adds to it, `[n, hidden]`.
    pub delta: T,
    /// Normed residual, `[n, hidden]`.
    pub normed: T,
    pub attention: AttentionBuffers<T>,
    /// Gate and up projections, `[n, 2·m]`.
    pub gate_up: T,
    /// Activated, `[n, m]`.
    pub activated: T,
}

/// The attention's part of them.
pub(crate) struct AttentionBuffers<T> {
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`.
    pub qkv: T,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: T,
}

/// What the second half of a layer, behind the attention, reads and writes.
pub(crate) struct SecondHalf<'a, T> {
    /// Attention output.
    pub attended: &'a T,
    pub residual: &'a mut T,
    pub delta: &'a mut T,
    pub normed: &'a mut T,
    pub gate_up: &'a mut T,
    pub activated: &'a mut T,
}

impl<T> LayerBuffers<T> {
    /// For passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        layer: &LayerSizes,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let mut tensor = |width, holds| device.activations(tokens, width, holds);
        Ok(Self {
            residual: tensor(layer.hidden, Holds::Sum)?,
            delta: tensor(layer.hidden, Holds::Sum)?,
            normed: tensor(layer.hidden, Holds::Operand)?,
            attention: AttentionBuffers {
                qkv: tensor(layer.attention.qkv_width(), Holds::Sum)?,
                attended: tensor(layer.attention.out_width(), Holds::Operand)?,
            },
            gate_up: tensor(2 * layer.mlp, Holds::Sum)?,
            activated: tensor(layer.mlp, Holds::Operand)?,
        })
    }

    /// The second half over every token.
    pub fn second_half(&mut self) -> SecondHalf<'_, T> {
        SecondHalf {
            attended: &self.attention.attended,
            residual: &mut self.residual,
            delta: &mut self.delta,
            normed: &mut self.normed,
            gate_up: &mut self.gate_up,
            activated: &mut self.activated,
        }
    }

    /// The second half over the wanted rows alone, whose attention outputs move
    /// to `attended`: what follows the last attention looks at single tokens.
    /// What is added to the residual stream and the stream itself change places
    /// for it. [`Self::set_rows`] undoes it.
    pub fn narrow<'a, B: Backend<Tensor = T>>(
        &'a mut self,
        backend: &mut B,
        inputs: &B::Inputs,
        wanted: usize,
        attended: &'a mut T,
    ) -> SecondHalf<'a, T> {
        self.set_block_rows(backend, wanted);
        let rows = || Rows::Wanted(inputs, 0..wanted);
        backend.gather_rows(&self.residual, rows(), &mut self.delta);
        backend.set_rows(attended, wanted);
        backend.gather_rows(&self.attention.attended, rows(), attended);
        backend.set_rows(&mut self.residual, wanted);
        SecondHalf {
            attended,
            residual: &mut self.delta,
            delta: &mut self.residual,
            normed: &mut self.normed,
            gate_up: &mut self.gate_up,
            activated: &mut self.activated,
        }
    }

    /// Sets the row count of what only the second half of a layer writes.
    pub fn set_block_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
        backend.set_rows(&mut self.gate_up, rows);
        backend.set_rows(&mut self.activated, rows);
    }

    /// Sets the row count of everything.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        self.set_block_rows(backend, rows);
        backend.set_rows(&mut self.residual, rows);
        backend.set_rows(&mut self.attention.qkv, rows);
        backend.set_rows(&mut self.attention.attended, rows);
    }
}

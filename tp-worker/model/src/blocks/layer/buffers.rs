//! Activations of a layer, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};

use super::LayerSizes;
use crate::{
    allocate::Allocate,
    blocks::{AttentionBuffers, Boundary},
    crossing::Crossing,
};

/// One set of activations, reused by every layer and every pass. `n` are the
/// tokens of this DP rank, `m` this rank's columns of the MLP, whose rows `a` are
/// those of all DP ranks.
pub(crate) struct LayerBuffers<T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: T,
    /// What a block adds to it, `[n, hidden]`.
    pub delta: T,
    /// Normed residual, `[n, hidden]`.
    pub normed: T,
    pub attention: AttentionBuffers<T>,
    /// Gate and up projections, `[a, 2·m]`.
    pub gate_up: T,
    /// Activated, `[a, m]`.
    pub activated: T,
    /// Where there are several DP ranks.
    pub all: Option<AllRows<T>>,
}

/// What an MLP over the rows of all DP ranks reads and gives.
pub(crate) struct AllRows<T> {
    /// Normed residuals of all DP ranks, `[a, hidden]`.
    pub gathered: T,
    /// This rank's part of what is added to the residuals, `[a, hidden]`.
    pub product: T,
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
    pub boundary: Boundary<'a, T>,
}

impl<T> LayerBuffers<T> {
    /// For passes of at most `tokens` tokens of each of `dp_size` DP ranks.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        layer: &LayerSizes,
        tokens: usize,
        dp_size: usize,
    ) -> Result<Self, BackendError> {
        let all = tokens.saturating_mul(dp_size);
        let mut tensor = |rows, width, holds| device.activations(rows, width, holds);
        Ok(Self {
            residual: tensor(tokens, layer.hidden, Holds::Sum)?,
            delta: tensor(tokens, layer.hidden, Holds::Sum)?,
            normed: tensor(tokens, layer.hidden, Holds::Operand)?,
            attention: AttentionBuffers {
                qkv: tensor(tokens, layer.attention.qkv_width(), Holds::Sum)?,
                attended: tensor(tokens, layer.attention.out_width(), Holds::Operand)?,
            },
            gate_up: tensor(all, 2 * layer.mlp, Holds::Sum)?,
            activated: tensor(all, layer.mlp, Holds::Operand)?,
            all: match dp_size {
                1 => None,
                _ => Some(AllRows {
                    gathered: tensor(all, layer.hidden, Holds::Operand)?,
                    product: tensor(all, layer.hidden, Holds::Sum)?,
                }),
            },
        })
    }

    /// The second half over every token.
    pub fn second_half<'a>(&'a mut self, crossing: Option<&'a Crossing>) -> SecondHalf<'a, T> {
        SecondHalf {
            attended: &self.attention.attended,
            residual: &mut self.residual,
            delta: &mut self.delta,
            normed: &mut self.normed,
            gate_up: &mut self.gate_up,
            activated: &mut self.activated,
            boundary: Boundary::new(crossing, &mut self.all),
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
        crossing: Option<&'a Crossing>,
    ) -> SecondHalf<'a, T> {
        self.set_block_rows(backend, wanted);
        self.set_mlp_rows(backend, crossing.map_or(wanted, Crossing::all));
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
            boundary: Boundary::new(crossing, &mut self.all),
        }
    }

    /// Sets the row count of what only the second half of a layer writes, but for
    /// the MLP's.
    fn set_block_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
    }

    /// Sets the row count of what the MLP reads and writes.
    pub fn set_mlp_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.gate_up, rows);
        backend.set_rows(&mut self.activated, rows);
        if let Some(all) = &mut self.all {
            backend.set_rows(&mut all.gathered, rows);
            backend.set_rows(&mut all.product, rows);
        }
    }

    /// Sets the row count of everything: `rows` of this DP rank, `all` of all.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize, all: usize) {
        self.set_block_rows(backend, rows);
        self.set_mlp_rows(backend, all);
        backend.set_rows(&mut self.residual, rows);
        backend.set_rows(&mut self.attention.qkv, rows);
        backend.set_rows(&mut self.attention.attended, rows);
    }
}

impl<'a, T> Boundary<'a, T> {
    fn new(crossing: Option<&'a Crossing>, all: &'a mut Option<AllRows<T>>) -> Self {
        match (crossing, all) {
            (Some(crossing), Some(AllRows { gathered, product })) => Self::AllRows {
                crossing,
                gathered,
                product,
            },
            _ => Self::SameRows,
        }
    }
}

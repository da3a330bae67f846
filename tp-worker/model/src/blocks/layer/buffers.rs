//! Activations of a layer, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};
use lockstep_types::ModelConfig;

use super::Layer;
use crate::{
    Shard,
    blocks::allocate::Allocate,
    blocks::{AttentionBuffers, Boundary, MlpBuffers, MlpOperands, attention_shapes, mlp_widths},
    split::crossing::Crossing,
};

/// One set of activations, reused by every layer and every pass. `n` is the number of tokens
/// of this DP rank, and `a` the number of rows of all DP ranks.
pub(crate) struct LayerBuffers<T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: T,
    /// The sum that a block adds to the residual stream, `[n, hidden]`.
    pub delta: T,
    /// Normed residual, `[n, hidden]`.
    pub normed: T,
    /// Buffers for each of [`attention_shapes`].
    pub attention: Vec<AttentionBuffers<T>>,
    /// Buffers for each of [`mlp_widths`].
    pub mlp: Vec<MlpBuffers<T>>,
    /// Buffers for the rows of all DP ranks; `None` with one DP rank.
    pub all: Option<AllRows<T>>,
}

/// Input and output of an MLP that runs over the rows of all DP ranks.
pub(crate) struct AllRows<T> {
    /// Normed residuals of all DP ranks, `[a, hidden]`.
    pub gathered: T,
    /// This rank's part of the sum that is added to the residuals, `[a, hidden]`.
    pub product: T,
}

/// Buffers that the second half of a layer, behind the attention, reads and writes.
pub(crate) struct SecondHalf<'a, T> {
    /// Attention output.
    pub attended: &'a T,
    pub mlp: MlpOperands<'a, T>,
}

impl<T> LayerBuffers<T> {
    /// Allocates buffers for the layers of `model`, and passes of at most `tokens` tokens of
    /// each DP rank.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let (hidden, dp_size) = (model.hidden_size, shard.topology.dp_size());
        let all = tokens.saturating_mul(dp_size);
        Ok(Self {
            residual: device.activations(tokens, hidden, Holds::Sum)?,
            delta: device.activations(tokens, hidden, Holds::Sum)?,
            normed: device.activations(tokens, hidden, Holds::Operand)?,
            attention: attention_shapes(model, shard)
                .iter()
                .map(|shape| AttentionBuffers::new(device, shape, tokens))
                .collect::<Result<_, _>>()?,
            mlp: mlp_widths(model)
                .iter()
                .map(|width| MlpBuffers::new(device, shard.mlp(*width).len(), all))
                .collect::<Result<_, _>>()?,
            all: match dp_size {
                1 => None,
                _ => Some(AllRows {
                    gathered: device.activations(all, hidden, Holds::Operand)?,
                    product: device.activations(all, hidden, Holds::Sum)?,
                }),
            },
        })
    }

    /// Returns the buffers for the second half of `layer` over every token.
    pub fn second_half<'a, B: Backend<Tensor = T>>(
        &'a mut self,
        layer: &Layer<B>,
        crossing: Option<&'a Crossing>,
    ) -> SecondHalf<'a, T> {
        SecondHalf {
            attended: &self.attention[layer.attention.buffers].attended,
            mlp: MlpOperands {
                residual: &mut self.residual,
                delta: &mut self.delta,
                normed: &mut self.normed,
                buffers: &mut self.mlp[layer.mlp.buffers],
                boundary: Boundary::new(crossing, &mut self.all),
            },
        }
    }

    /// Returns the buffers for the second half of `layer` over the wanted rows alone, since
    /// only single tokens are read behind the last attention. Their attention outputs are
    /// copied to `attended`, and their residuals to `delta`. `delta` then serves as the
    /// residual stream, and `residual` as the sum. [`Self::set_rows`] restores the row
    /// counts.
    pub fn narrow<'a, B: Backend<Tensor = T>>(
        &'a mut self,
        backend: &mut B,
        layer: &Layer<B>,
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
        let from = &self.attention[layer.attention.buffers].attended;
        backend.gather_rows(from, rows(), attended);
        backend.set_rows(&mut self.residual, wanted);
        SecondHalf {
            attended,
            mlp: MlpOperands {
                residual: &mut self.delta,
                delta: &mut self.residual,
                normed: &mut self.normed,
                buffers: &mut self.mlp[layer.mlp.buffers],
                boundary: Boundary::new(crossing, &mut self.all),
            },
        }
    }

    /// Sets the row count of the buffers that only the second half of a layer writes, except
    /// the MLP's.
    fn set_block_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
    }

    /// Sets the row count of the buffers that the MLP reads and writes.
    pub fn set_mlp_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        for mlp in &mut self.mlp {
            backend.set_rows(&mut mlp.gate_up, rows);
            backend.set_rows(&mut mlp.activated, rows);
        }
        if let Some(all) = &mut self.all {
            backend.set_rows(&mut all.gathered, rows);
            backend.set_rows(&mut all.product, rows);
        }
    }

    /// Sets the row count of all buffers: `rows` rows of this DP rank, `all` rows of all DP
    /// ranks.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize, all: usize) {
        self.set_block_rows(backend, rows);
        self.set_mlp_rows(backend, all);
        backend.set_rows(&mut self.residual, rows);
        for attention in &mut self.attention {
            backend.set_rows(&mut attention.qkv, rows);
            backend.set_rows(&mut attention.attended, rows);
        }
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

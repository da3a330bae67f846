//! Activations of a layer, allocated once.

use lockstep_backend::{Backend, BackendError};
use lockstep_types::ModelConfig;

use crate::Shard;

/// One set of activations, reused by every layer and every pass.
pub(crate) struct LayerBuffers<B: Backend> {
    /// The residual stream, `[n, hidden]`.
    pub residual: B::Tensor,
    /// What a block adds to it, `[n, hidden]`.
    pub delta: B::Tensor,
    /// Normed residual, `[n, hidden]`.
    pub normed: B::Tensor,
    pub attention: AttentionBuffers<B>,
    /// Gate and up projections, `[n, 2·m]`.
    pub gate_up: B::Tensor,
    /// Activated, `[n, m]`.
    pub activated: B::Tensor,
}

/// The attention's part of them.
pub(crate) struct AttentionBuffers<B: Backend> {
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`.
    pub qkv: B::Tensor,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: B::Tensor,
}

impl<B: Backend> LayerBuffers<B> {
    /// Allocates for passes of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        model: &ModelConfig,
        shard: &Shard,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let heads = shard.heads.len() * model.head_dim;
        let kv = shard.kv_heads.len() * model.head_dim;
        Ok(Self {
            residual: backend.tensor(tokens, model.hidden_size)?,
            delta: backend.tensor(tokens, model.hidden_size)?,
            normed: backend.tensor(tokens, model.hidden_size)?,
            attention: AttentionBuffers {
                qkv: backend.tensor(tokens, heads + 2 * kv)?,
                attended: backend.tensor(tokens, heads)?,
            },
            gate_up: backend.tensor(tokens, 2 * shard.mlp.len())?,
            activated: backend.tensor(tokens, shard.mlp.len())?,
        })
    }

    /// Sets the row count of the tensors that the second half of a layer uses.
    pub fn set_block_rows(&mut self, backend: &mut B, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
        backend.set_rows(&mut self.gate_up, rows);
        backend.set_rows(&mut self.activated, rows);
    }

    /// Sets the row count of everything.
    pub fn set_rows(&mut self, backend: &mut B, rows: usize) {
        self.set_block_rows(backend, rows);
        backend.set_rows(&mut self.residual, rows);
        backend.set_rows(&mut self.attention.qkv, rows);
        backend.set_rows(&mut self.attention.attended, rows);
    }
}

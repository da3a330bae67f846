//! Activations of a pass, allocated once.

use lockstep_backend::Backend;
use lockstep_config::ModelConfig;

use super::ForwardLimits;
use crate::{ModelError, Shard};

/// One set of activations, reused by every layer and every pass.
pub(super) struct Buffers<B: Backend> {
    /// The residual stream, `[n, hidden]`.
    pub residual: B::Tensor,
    /// What a block adds to it, `[n, hidden]`.
    pub delta: B::Tensor,
    /// Normed residual, `[n, hidden]`.
    pub normed: B::Tensor,
    /// Queries, keys and values, `[n, (heads + 2·kv_heads)·head_dim]`.
    pub qkv: B::Tensor,
    /// Attention output, `[n, heads·head_dim]`.
    pub attended: B::Tensor,
    /// The rows of `attended` that logits are wanted of.
    pub attended_wanted: B::Tensor,
    /// Gate and up projections, `[n, 2·m]`.
    pub gate_up: B::Tensor,
    /// Activated, `[n, m]`.
    pub activated: B::Tensor,
    /// Normed rows of one logit block, `[block, hidden]`.
    pub head_input: B::Tensor,
    /// This rank's columns of one logit block, `[block, vocab part]`.
    pub logits: B::Tensor,
    /// One logit block on the host of rank 0, `[block, vocab]`.
    pub host_logits: Vec<f32>,
    /// `0..max_tokens`: row numbers of logit blocks.
    pub numbers: Vec<u32>,
}

impl<B: Backend> Buffers<B> {
    /// Allocates for `limits`.
    ///
    /// # Errors
    /// [`ModelError::Backend`] when memory is short.
    pub fn new(
        backend: &mut B,
        model: &ModelConfig,
        shard: &Shard,
        limits: ForwardLimits,
    ) -> Result<Self, ModelError> {
        let (tokens, block) = (limits.max_tokens, limits.logit_block_rows);
        let heads = shard.heads.len() * model.head_dim;
        let kv = shard.kv_heads.len() * model.head_dim;
        // A rank alone reads its logits where they are.
        let host = if shard.rank == 0 && shard.size > 1 {
            block * model.vocab_size
        } else {
            0
        };
        Ok(Self {
            residual: backend.tensor(tokens, model.hidden_size)?,
            delta: backend.tensor(tokens, model.hidden_size)?,
            normed: backend.tensor(tokens, model.hidden_size)?,
            qkv: backend.tensor(tokens, heads + 2 * kv)?,
            attended: backend.tensor(tokens, heads)?,
            attended_wanted: backend.tensor(tokens, heads)?,
            gate_up: backend.tensor(tokens, 2 * shard.mlp.len())?,
            activated: backend.tensor(tokens, shard.mlp.len())?,
            head_input: backend.tensor(block, model.hidden_size)?,
            logits: backend.tensor(block, shard.vocab.len())?,
            host_logits: Vec::with_capacity(host),
            numbers: (0..tokens as u32).collect(),
        })
    }

    /// Sets the row count of the tensors that the second half of a layer uses.
    pub fn set_block_rows(&mut self, backend: &mut B, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
        backend.set_rows(&mut self.gate_up, rows);
        backend.set_rows(&mut self.activated, rows);
    }

    /// Sets the row count of everything `[n, …]`.
    pub fn set_rows(&mut self, backend: &mut B, rows: usize) {
        self.set_block_rows(backend, rows);
        backend.set_rows(&mut self.residual, rows);
        backend.set_rows(&mut self.qkv, rows);
        backend.set_rows(&mut self.attended, rows);
    }

    /// Keeps only the rows `wanted` of the residual stream and of the attention
    /// output: what follows the last attention looks at single tokens.
    pub fn narrow(&mut self, backend: &mut B, wanted: &[u32]) {
        self.set_block_rows(backend, wanted.len());
        backend.set_rows(&mut self.attended_wanted, wanted.len());
        backend.gather_rows(&self.residual, wanted, &mut self.delta);
        backend.gather_rows(&self.attended, wanted, &mut self.attended_wanted);
        std::mem::swap(&mut self.residual, &mut self.delta);
        std::mem::swap(&mut self.attended, &mut self.attended_wanted);
        backend.set_rows(&mut self.delta, wanted.len());
    }
}

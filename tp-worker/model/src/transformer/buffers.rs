//! Activations of a pass, allocated once.

use lockstep_backend::Backend;
use lockstep_types::ModelConfig;

use crate::{ForwardLimits, ModelError, Shard, layer::LayerBuffers};

/// One set of activations, reused by every pass.
pub(super) struct Buffers<B: Backend> {
    pub layer: LayerBuffers<B>,
    /// The rows of the attention output that logits are wanted of.
    pub attended_wanted: B::Tensor,
    /// Normed rows of one logit block, `[block, hidden]`.
    pub head_input: B::Tensor,
    /// This rank's columns of one logit block, `[block, vocab part]`.
    pub logits: B::Tensor,
    /// One logit block on the host of the rank that leads, `[block, vocab]`.
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
        // A rank alone reads its logits where they are.
        let host = if shard.rank == 0 && shard.size > 1 {
            block * model.vocab_size
        } else {
            0
        };
        Ok(Self {
            layer: LayerBuffers::new(backend, model, shard, tokens)?,
            attended_wanted: backend.tensor(tokens, shard.heads.len() * model.head_dim)?,
            head_input: backend.tensor(block, model.hidden_size)?,
            logits: backend.tensor(block, shard.vocab.len())?,
            host_logits: Vec::with_capacity(host),
            numbers: (0..tokens as u32).collect(),
        })
    }

    /// Keeps only the rows `wanted` of the residual stream and of the attention
    /// output: what follows the last attention looks at single tokens.
    pub fn narrow(&mut self, backend: &mut B, wanted: &[u32]) {
        let layer = &mut self.layer;
        layer.set_block_rows(backend, wanted.len());
        backend.set_rows(&mut self.attended_wanted, wanted.len());
        backend.gather_rows(&layer.residual, wanted, &mut layer.delta);
        let attended = &mut layer.attention.attended;
        backend.gather_rows(attended, wanted, &mut self.attended_wanted);
        std::mem::swap(attended, &mut self.attended_wanted);
        std::mem::swap(&mut layer.residual, &mut layer.delta);
        backend.set_rows(&mut layer.delta, wanted.len());
    }
}

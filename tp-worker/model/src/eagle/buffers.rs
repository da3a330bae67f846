//! Hidden states and activations of a head, allocated once.

use lockstep_backend::{Backend, BackendError};
use lockstep_types::ModelConfig;

use super::hidden::Picks;
use crate::{ForwardLimits, Shard, layer::LayerBuffers};

/// What [`Buffers`] are allocated for.
pub(super) struct Sizes {
    /// Width of the target's captured features.
    pub features: usize,
    /// Rows of the output head.
    pub vocab: usize,
    /// Slots.
    pub requests: usize,
    pub limits: ForwardLimits,
}

/// One set of tensors, reused by every pass.
pub(super) struct Buffers<B: Backend> {
    /// The layer's; between passes its residual stream holds the outputs of
    /// the last one.
    pub layer: LayerBuffers<B>,
    /// Hidden inputs of the next pass, `[n, hidden]`.
    pub hidden: B::Tensor,
    /// Rows of the target's features, `[n, features]`.
    pub features: B::Tensor,
    /// Embedded tokens, `[n, hidden]`.
    pub embedded: B::Tensor,
    /// Embedding and hidden state side by side, `[n, 2·hidden]`.
    pub joined: B::Tensor,
    /// Every slot's root, `[requests, hidden]`.
    pub roots: B::Tensor,
    /// Hidden states that logits are wanted of, `[block, hidden]`.
    pub head_input: B::Tensor,
    /// The same normed.
    pub head_normed: B::Tensor,
    /// `[block, vocab]`.
    pub logits: B::Tensor,
    /// The same on the host, where the device's memory can't be read.
    pub host_logits: Vec<f32>,
    /// Logits of more states than a block has rows.
    pub collected: Vec<f32>,
    pub picks: Picks,
}

impl<B: Backend> Buffers<B> {
    /// Allocates for `sizes`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        model: &ModelConfig,
        shard: &Shard,
        sizes: &Sizes,
    ) -> Result<Self, BackendError> {
        let (tokens, block) = (sizes.limits.max_tokens, sizes.limits.logit_block_rows);
        let hidden = model.hidden_size;
        Ok(Self {
            layer: LayerBuffers::new(backend, model, shard, tokens)?,
            hidden: backend.tensor(tokens, hidden)?,
            features: backend.tensor(tokens, sizes.features)?,
            embedded: backend.tensor(tokens, hidden)?,
            joined: backend.tensor(tokens, 2 * hidden)?,
            roots: backend.tensor(sizes.requests, hidden)?,
            head_input: backend.tensor(block, hidden)?,
            head_normed: backend.tensor(block, hidden)?,
            logits: backend.tensor(block, sizes.vocab)?,
            host_logits: Vec::new(),
            collected: collected(sizes)?,
            picks: Picks::new(tokens),
        })
    }

    /// Sets the row count of everything a pass over `rows` tokens writes.
    pub fn set_rows(&mut self, backend: &mut B, rows: usize) {
        self.layer.set_rows(backend, rows);
        backend.set_rows(&mut self.embedded, rows);
        backend.set_rows(&mut self.joined, rows);
    }
}

/// Room for one state of every slot, as chains need it, where that takes more
/// than a block. Trees may make it grow once.
fn collected(sizes: &Sizes) -> Result<Vec<f32>, BackendError> {
    let mut collected = Vec::new();
    if sizes.requests > sizes.limits.logit_block_rows {
        let elements = sizes.requests.saturating_mul(sizes.vocab);
        let no_room = |_| BackendError::OutOfMemory {
            what: "draft logits",
            bytes: elements.saturating_mul(size_of::<f32>()),
        };
        collected.try_reserve_exact(elements).map_err(no_room)?;
    }
    Ok(collected)
}

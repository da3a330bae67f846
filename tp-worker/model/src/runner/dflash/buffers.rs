//! Activations of a DFlash model, allocated once.

use lockstep_backend::{BackendError, Holds};
use lockstep_types::{DflashSpec, ModelConfig};

use crate::{ForwardLimits, Shard, blocks::LayerBuffers, blocks::allocate::Allocate};

/// Sizes that [`Buffers`] are allocated for.
pub(crate) struct Sizes {
    /// Width of the target's captured features.
    pub features: usize,
    /// Number of tokens in the target's vocabulary.
    pub vocab: usize,
    pub limits: ForwardLimits,
}

impl Sizes {
    /// Returns the limits of the passes of a drafter whose other passes have `limits`. A whole
    /// block is one row with a mask.
    pub fn limits(spec: &DflashSpec, limits: ForwardLimits) -> ForwardLimits {
        ForwardLimits {
            tree_nodes: spec.block_size,
            replays: 0,
            ..limits.sensible()
        }
    }
}

/// One set of tensors, reused by every pass.
pub(crate) struct Buffers<T> {
    /// Activations of the layers. Between passes `normed` holds the outputs of the last block.
    pub layer: LayerBuffers<T>,
    /// Rows of the target's features, `[n, features]`.
    pub features: T,
    /// Outputs whose logits are wanted, `[block, hidden]`.
    pub head_input: T,
    /// Logits of one block, `[block, vocab]`.
    pub logits: T,
    /// Logits of one block on the host, where the device's memory can't be read.
    pub host_logits: Vec<f32>,
}

impl<T> Buffers<T> {
    /// Allocates buffers for `sizes`.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        sizes: &Sizes,
    ) -> Result<Self, BackendError> {
        let (tokens, block) = (sizes.limits.max_tokens, sizes.limits.logit_block_rows);
        Ok(Self {
            layer: LayerBuffers::new(device, model, shard, tokens)?,
            features: device.activations(tokens, sizes.features, Holds::Operand)?,
            head_input: device.activations(block, model.hidden_size, Holds::Operand)?,
            logits: device.activations(block, sizes.vocab, Holds::Logits)?,
            host_logits: Vec::new(),
        })
    }
}

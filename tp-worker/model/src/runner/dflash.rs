//! DFlash models, which fill a block of masks in one pass.

mod buffers;
mod forward;
mod load;

use lockstep_backend::{Backend, BackendError, LogitScaling, Row};
use lockstep_types::{DflashSpec, KvCacheDtype, ModelConfig};

use crate::{
    CaptureSpec, ForwardLimits, Shard,
    blocks::{
        LayerContext,
        cache::{ModelCache, cache_shapes},
        parts::Tensors,
    },
    models::dflash::Dflash,
};

pub(crate) use buffers::{Buffers, Sizes};

/// A DFlash model (Chen et al., arXiv:2602.06036) on one device, in the layout of the public
/// checkpoints, with all buffers that its passes need.
///
/// Every layer's cache holds keys and values of the target's hidden states, position by
/// position: the context, which [`Self::take_in`] adds to. A block is the last known token
/// and masks behind it. Its pass, [`Self::forward`], sees the context and the whole block. The
/// output at a mask predicts the token in the mask's place.
///
/// The model is whole on one rank and waits for no other rank.
pub struct DflashModel<B: Backend> {
    spec: DflashSpec,
    model: ModelConfig,
    shard: Shard,
    capture: CaptureSpec,
    limits: ForwardLimits,
    context: LayerContext<B>,
    weights: Dflash<B>,
    /// Number of rows of the target's output head.
    vocab: usize,
    /// Scaling of the products of the target's output head; `None` if they are the logits.
    scaling: Option<LogitScaling>,
    buffers: Buffers<B::Tensor>,
    /// The staged batch of a pass.
    inputs: B::Inputs,
    /// The staged batch without masks, for causal layers; `None` in a model without such layers.
    causal: Option<B::Inputs>,
    /// Rows of a batch without their masks.
    rows: Vec<Row>,
    /// Number of tokens of the last block's pass; 0 if it failed.
    outputs: usize,
}

impl<B: Backend> DflashModel<B> {
    /// Returns the hidden states that the target's passes must keep for [`Self::take_in`].
    pub fn capture(&self) -> CaptureSpec {
        self.capture.clone()
    }

    /// Facts about blocks and masks.
    pub fn spec(&self) -> &DflashSpec {
        &self.spec
    }

    /// Sizes that the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// Number of columns of logits.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Allocates the caches that the model needs, with `pages` pages.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn kv_cache(
        &self,
        backend: &mut B,
        pages: usize,
        page_size: usize,
        dtype: KvCacheDtype,
    ) -> Result<ModelCache<B>, BackendError> {
        let shapes = cache_shapes(&self.model, &self.shard, 1, pages.into(), page_size, dtype);
        ModelCache::new(backend, shapes)
    }

    /// Bytes of packed weights on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.weights
            .each(|matrix| bytes += backend.matrix_bytes(matrix), |_| {});
        bytes
    }
}

//! EAGLE draft heads: one layer that continues the target's hidden states.

mod buffers;
mod chains;
mod forward;
mod hidden;
mod load;
mod output;
mod trees;

use lockstep_backend::{Backend, KvShape};
use lockstep_types::KvCacheDtype;

use crate::{
    CaptureSpec, ForwardLimits,
    blocks::{LayerContext, parts::Tensors},
    models::eagle::Eagle,
};
use hidden::Picks;

pub(crate) use buffers::{Buffers, Sizes};

pub use hidden::HiddenSource;

/// An EAGLE-1/2 (Li et al., arXiv:2401.15077, arXiv:2406.16858) or EAGLE-3
/// head (arXiv:2503.01840) on one device, in the layouts of the public
/// checkpoints, with all buffers its passes need.
///
/// Position `i` takes the pair of a hidden state of position `i` and the token
/// at `i + 1`, and predicts the token at `i + 2`. The hidden state is the
/// target's where that is known, and the head's own output of position `i - 1`
/// while it drafts. A pass is fed hidden states and run over the tokens. Of a text
/// it keeps the output of a request's last position, its root, from which a later
/// step drafts; what is drafted then is read, and fed again.
///
/// It is whole on one rank and waits for no other.
pub struct EagleHead<B: Backend> {
    /// Of the weights and the buffers, which go after it.
    passes: B::Passes,
    capture: CaptureSpec,
    /// Width of the residual stream.
    hidden: usize,
    vocab: usize,
    limits: ForwardLimits,
    requests: usize,
    context: LayerContext<B>,
    weights: Eagle<B>,
    /// The target's token for each of the head's; empty where they are the same.
    targets: Vec<u32>,
    /// The same where the device drafts by itself.
    ids: Option<B::Vector>,
    buffers: Buffers<B::Tensor>,
    /// The batch of the pass.
    inputs: B::Inputs,
    picks: Picks,
    /// `0..requests`: row numbers of outputs that become roots.
    numbers: Vec<u32>,
    /// Hidden inputs of the next pass.
    fed: usize,
    /// Tokens of the last pass; 0 where it failed.
    outputs: usize,
}

impl<B: Backend> EagleHead<B> {
    /// What the target's passes must keep for [`Self::feed_features`].
    pub fn capture(&self) -> CaptureSpec {
        self.capture.clone()
    }

    /// What the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// The cache the head needs for `pages` pages.
    pub fn kv_shape(&self, pages: usize, page_size: usize, dtype: KvCacheDtype) -> KvShape {
        KvShape {
            layers: 1,
            kv_heads: self.weights.layer.attention.shape.kv_heads,
            head_dim: self.weights.layer.attention.shape.head_dim,
            pages,
            page_size,
            dtype,
        }
    }

    /// Bytes of packed weights on the device, tables of its own included.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.weights
            .each(|matrix| bytes += backend.matrix_bytes(matrix), |_| {});
        bytes
    }

    /// Rows of the output head.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether the embedding and the output head are its own, and not those of
    /// the tables passed in.
    pub fn own_tables(&self) -> (bool, bool) {
        let Eagle {
            embedding, head, ..
        } = &self.weights;
        (embedding.is_some(), head.is_some())
    }

    /// The target's token for one of [`Self::vocab`].
    pub fn target_token(&self, draft_id: u32) -> u32 {
        let target = self.targets.get(draft_id as usize);
        target.copied().unwrap_or(draft_id)
    }
}

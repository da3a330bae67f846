//! EAGLE draft heads: a layer that continues the target's hidden states, or some in turn.

mod buffers;
mod drafting;
mod forward;
mod hidden;
mod load;
mod output;
mod turns;

use lockstep_backend::{Backend, BackendError, KvShape, LatentShape, LogitScaling};
use lockstep_types::KvCacheDtype;

use crate::{
    CaptureSpec, ForwardLimits,
    blocks::{LayerContext, Mixer, cache::ModelCache, parts::Tensors},
    models::eagle::Eagle,
};
use hidden::Picks;

pub(crate) use buffers::{Buffers, Sizes};

pub use hidden::HiddenSource;
pub(crate) use load::check;

/// An EAGLE-1/2 (Li et al., arXiv:2401.15077, arXiv:2406.16858) or EAGLE-3 head
/// (arXiv:2503.01840) on one device, in the layouts of the public checkpoints, with all
/// buffers that its passes need.
///
/// Position `i` takes the hidden state of position `i` and the token at `i + 1`, and predicts
/// the token at `i + 2`. The hidden state is the target's where that is known. While the head
/// drafts, it is the head's own output of position `i - 1`. A pass is first fed hidden
/// states, and then runs over the tokens. For text, the head keeps only the output of a
/// request's last position, the root. A later step drafts from the root, reads the outputs of
/// drafted tokens and feeds them again.
///
/// Several layers may draft in turn. Position `i` of a later one takes the output of the layer
/// before at position `i - 1`, and the same token. [`Self::take_in_turn`] runs all of
/// them over text, and [`Self::feed_hidden`] chooses the layer of a draft.
///
/// The head is whole on one rank and waits for no other rank.
pub struct EagleHead<B: Backend> {
    /// Recorded passes of each layer over the weights and the buffers. The field comes first, so
    /// that it is dropped before them.
    passes: Vec<B::Passes>,
    capture: CaptureSpec,
    /// Width of the residual stream.
    hidden: usize,
    vocab: usize,
    limits: ForwardLimits,
    requests: usize,
    context: LayerContext<B>,
    weights: Eagle<B>,
    /// The target's token for each token of the head; empty where the two are the same.
    targets: Vec<u32>,
    /// Scaling of logits that the target's output head computes; `None` for an own head.
    scaling: Option<LogitScaling>,
    /// `targets` on the device, if the device drafts by itself.
    ids: Option<B::Vector>,
    buffers: Buffers<B::Tensor>,
    /// The staged batch of a pass.
    inputs: B::Inputs,
    picks: Picks,
    /// `0..requests`: row numbers of outputs that become roots.
    numbers: Vec<u32>,
    /// Number of hidden inputs fed for the next pass.
    fed: usize,
    /// Number of tokens of the last pass; 0 if it failed.
    outputs: usize,
    /// Number of the layer that the next pass runs, or that the last one ran.
    turn: usize,
    /// Hidden inputs of a later layer over text.
    sources: Vec<HiddenSource>,
}

impl<B: Backend> EagleHead<B> {
    /// Returns the hidden states that the target's passes must keep for
    /// [`Self::feed_features`].
    pub fn capture(&self) -> CaptureSpec {
        self.capture.clone()
    }

    /// Sizes that the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// Allocates the cache that the head needs, with `pages` pages.
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
        // All layers that draft in turn have equal caches.
        let mixers = self.weights.layers.iter().map(|own| &own.layer.mixer);
        let (kv_heads, head_dim, latent) = match mixers.clone().next().and_then(Option::as_ref) {
            Some(Mixer::Attention(own)) => (own.shape.kv_heads, own.shape.head_dim, None),
            Some(Mixer::LatentAttention(own)) => {
                let LatentShape {
                    latent, rotated, ..
                } = own.shape;
                (1, latent + rotated, Some(latent))
            }
            Some(Mixer::GatedDelta(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_)) | None => {
                let message =
                    "draft layers have attention: recurrent ones keep what is not accepted";
                return Err(BackendError::Unsupported(message.into()));
            }
        };
        let shape = KvShape {
            group: 0,
            layers: mixers.count(),
            kv_heads,
            head_dim,
            latent,
            pages,
            page_size,
            dtype,
        };
        ModelCache::new(backend, vec![shape])
    }

    /// Bytes of packed weights on the device, including the head's own tables.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.weights
            .each(|matrix| bytes += backend.matrix_bytes(matrix), |_| {});
        bytes
    }

    /// Number of layers that draft in turn.
    pub fn layers(&self) -> usize {
        self.weights.layers.len()
    }

    /// Number of rows of the output head.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns true for the embedding and for the output head if the head has one of its own.
    /// Otherwise it reads that of the tables passed in.
    pub fn own_tables(&self) -> (bool, bool) {
        let Eagle {
            embedding, head, ..
        } = &self.weights;
        (embedding.is_some(), head.is_some())
    }

    /// Returns the target's token for the head's token `draft_id`.
    pub fn target_token(&self, draft_id: u32) -> u32 {
        let target = self.targets.get(draft_id as usize);
        target.copied().unwrap_or(draft_id)
    }
}

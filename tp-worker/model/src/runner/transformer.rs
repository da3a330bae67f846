//! A decoder-only transformer, one shard of it.

mod adapters;
mod buffers;
mod capture;
mod choose;
mod collectives;
mod drafting;
mod forward;
mod load;
mod logits;
mod notes;
mod restore;
mod size;
mod staged;
pub(crate) mod tail;

use std::{ops::Range, path::PathBuf};

use lockstep_backend::{Axis, Backend, BackendError, NoteShape};
use lockstep_types::{KvCacheDtype, KvPages, ModelConfig, StateLimits};

use crate::{
    ForwardLimits, Shard, Tables,
    blocks::{
        LayerContext,
        cache::{ModelCache, cache_shapes},
        parts::Tensors,
        recurrent::state_shapes,
    },
    models::decoder::Decoder,
    split::crossing::Crossings,
};
use adapters::Adapters;
pub(crate) use buffers::Buffers;
use capture::Capture;
use tail::Tail;

pub use load::LoadOptions;
pub(super) use logits::scaling;
pub use logits::{LogitBlock, LogitSink};
pub use staged::{DraftStaged, Staged};

/// One rank's shard of a model on a device, with all buffers that a pass needs. After
/// loading, [`Self::forward`] allocates nothing.
pub struct Transformer<B: Backend> {
    /// Recorded passes over the weights, the buffers and the capture. The field comes first,
    /// so that it is dropped before them.
    passes: B::Passes,
    model: ModelConfig,
    shard: Shard,
    limits: ForwardLimits,
    context: LayerContext<B>,
    /// Rows that cross between DP ranks; `None` with one DP rank.
    world: Option<Crossings>,
    weights: Decoder<B>,
    /// Number of vocabulary rows of every rank.
    vocab_widths: Vec<usize>,
    buffers: Buffers<B::Tensor>,
    /// The staged batch of a pass.
    inputs: B::Inputs,
    /// The staged batch of the tail; `None` for a model without one.
    tail: Option<Tail<B>>,
    /// Shape of the notes that passes carry; `None` if they carry none.
    notes: Option<NoteShape>,
    /// Row numbers `0..` of all wanted rows, from which a logit block takes its range.
    numbers: Vec<u32>,
    /// Rows of a logit block that each rank gets.
    owned: Vec<Range<usize>>,
    /// True if the device chooses tokens.
    chooses: bool,
    /// True if recorded passes end with the logits, and the choice is queued behind them.
    cut: bool,
    /// True if the device of a DP rank's lead drafts and sends the drafts to the other ranks'
    /// devices.
    tells_drafts: bool,
    /// Hidden states kept for a drafter; `None` if none are kept.
    capture: Option<Capture<B>>,
    /// Places of adapters; their matrices are in the context.
    adapters: Adapters,
    origin: WeightOrigin,
}

/// Origin of a shard's weights, and problems with the folder of packed weights, if there is
/// one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightOrigin {
    /// The packed file that the weights were read from or written to.
    pub file: Option<PathBuf>,
    /// True if the weights were read from `file`; false if they come from the checkpoint.
    pub restored: bool,
    /// Problems with the folder, one sentence each. None of them changes the weights.
    pub warnings: Vec<String>,
}

impl<B: Backend> Transformer<B> {
    /// The model's description.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// This rank's part of the model.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Origin of the weights.
    pub fn weight_origin(&self) -> &WeightOrigin {
        &self.origin
    }

    /// The ranks that the model is split over. Its attention is split over the ranks of a DP
    /// rank.
    pub fn axis(&self) -> Axis {
        self.context.axis
    }

    /// Sizes that the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// Returns true if the device chooses tokens as [`lockstep_backend::Batch::choices`] say.
    /// Otherwise the host chooses all tokens.
    pub fn chooses(&self) -> bool {
        self.chooses
    }

    /// Allocates the caches that this rank needs, with `pages` for the groups of layers: a
    /// number gives all groups equally many.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn kv_cache(
        &self,
        backend: &mut B,
        pages: impl Into<KvPages>,
        page_size: usize,
        dtype: KvCacheDtype,
    ) -> Result<ModelCache<B>, BackendError> {
        let (model, groups) = (&self.model, self.limits.groups);
        let shapes = cache_shapes(model, &self.shard, groups, pages.into(), page_size, dtype);
        ModelCache::new(backend, shapes)
    }

    /// Allocates states and records of the recurrent layers beside the caches in `cache`; none for
    /// a model without such layers.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] on devices that have no
    /// recurrent layers.
    pub fn allocate_states(
        &self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        limits: StateLimits,
    ) -> Result<(), BackendError> {
        let shapes = state_shapes(&self.model, &self.shard, limits);
        cache.allocate_states(backend, &shapes)
    }

    /// Bytes of packed weights on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.weights
            .each(|matrix| bytes += backend.matrix_bytes(matrix), |_| {});
        bytes
    }

    /// Returns true if this rank holds all rows of the embedding.
    pub fn holds_embedding(&self) -> bool {
        self.shard.embedding.len() == self.model.vocab_size
    }

    /// Returns this rank's rows of the tables of tokens. A rank alone has whole tables. With
    /// several DP ranks, the embedding is whole.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.weights.embedding,
            head: self.weights.head(),
        }
    }
}

//! A dense decoder-only transformer (Llama, Mistral, Qwen2, Qwen3), one shard of it.

mod buffers;
mod capture;
mod chains;
mod choose;
mod collectives;
mod draft_broadcast;
mod forward;
mod load;
mod logits;
mod notes;
mod restore;
mod size;
mod staged;
mod trees;

use std::{ops::Range, path::PathBuf};

use lockstep_backend::{Axis, Backend, KvShape, NoteShape};
use lockstep_types::{KvCacheDtype, ModelConfig};

use crate::{
    ForwardLimits, Shard, Tables,
    blocks::{LayerContext, attention_shapes, parts::Tensors},
    models::decoder::Decoder,
    split::crossing::World,
};
pub(crate) use buffers::Buffers;
use capture::Capture;

pub use load::LoadOptions;
pub use logits::{LogitBlock, LogitSink};
pub use staged::{DraftStaged, Staged};

/// One rank's shard of a model on a device, with all buffers a pass needs:
/// after loading, [`Self::forward`] allocates nothing.
pub struct Transformer<B: Backend> {
    /// Of the weights, the buffers and the capture that there are, which go after it.
    passes: B::Passes,
    model: ModelConfig,
    shard: Shard,
    limits: ForwardLimits,
    context: LayerContext<B>,
    /// How rows cross, where there are several DP ranks.
    world: Option<World>,
    weights: Decoder<B>,
    /// Every rank's vocabulary rows.
    vocab_widths: Vec<usize>,
    buffers: Buffers<B::Tensor>,
    /// The batch of the pass.
    inputs: B::Inputs,
    /// Of the notes that travel with its passes, if any do.
    notes: Option<NoteShape>,
    /// Row numbers of logit blocks: those of all wanted rows.
    numbers: Vec<u32>,
    /// Rows of a logit block that each rank gets.
    owned: Vec<Range<usize>>,
    /// The device chooses tokens.
    chooses: bool,
    /// The device of a DP rank's lead drafts, and tells those of its other ranks.
    tells_drafts: bool,
    /// What is kept for a drafter, if anything.
    capture: Option<Capture<B>>,
    origin: WeightOrigin,
}

/// Where a shard's weights came from, and what became of the folder of packed
/// weights, if there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightOrigin {
    /// The packed file that they were read from, or were written to.
    pub file: Option<PathBuf>,
    /// They were read from it; otherwise from the checkpoint.
    pub restored: bool,
    /// What went wrong with the folder, one sentence each. None of it changes
    /// the weights.
    pub warnings: Vec<String>,
}

impl<B: Backend> Transformer<B> {
    /// The model's description.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// This rank's part.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Where the weights came from.
    pub fn weight_origin(&self) -> &WeightOrigin {
        &self.origin
    }

    /// The ranks that it is split over; its attention over those of a DP rank.
    pub fn axis(&self) -> Axis {
        self.context.axis
    }

    /// What the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// Whether the device chooses tokens as [`lockstep_backend::Batch::choices`] say;
    /// otherwise all are the host's.
    pub fn chooses(&self) -> bool {
        self.chooses
    }

    /// The cache this rank needs for `pages` pages.
    pub fn kv_shape(&self, pages: usize, page_size: usize, dtype: KvCacheDtype) -> KvShape {
        kv_shape(&self.model, &self.shard, pages, page_size, dtype)
    }

    /// Bytes of packed weights on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let mut bytes = 0;
        self.weights
            .each(|matrix| bytes += backend.matrix_bytes(matrix), |_| {});
        bytes
    }

    /// Whether this rank has all rows of the embedding.
    pub fn holds_embedding(&self) -> bool {
        self.shard.embedding.len() == self.model.vocab_size
    }

    /// This rank's rows of the tables of tokens: whole on a rank alone, and with
    /// several DP ranks the embedding is.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.weights.embedding,
            head: self.weights.head(),
        }
    }
}

/// The cache that a shard of `model` needs for `pages` pages.
pub(crate) fn kv_shape(
    model: &ModelConfig,
    shard: &Shard,
    pages: usize,
    page_size: usize,
    dtype: KvCacheDtype,
) -> KvShape {
    let shapes = attention_shapes(model, shard);
    let (kv_heads, head_dim) = shapes
        .first()
        .map_or((0, 0), |shape| (shape.kv_heads, shape.head_dim));
    KvShape {
        layers: model.layers.len(),
        kv_heads,
        head_dim,
        pages,
        page_size,
        dtype,
    }
}

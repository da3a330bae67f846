//! A dense decoder-only transformer (Llama, Mistral, Qwen2, Qwen3), one shard of it.

mod buffers;
mod capture;
mod forward;
mod host;
mod load;
mod parts;

use std::path::PathBuf;

use lockstep_backend::{Axis, Backend, KvShape};
use lockstep_types::{KvCacheDtype, ModelConfig};

use crate::{
    CollectiveKind, CollectiveStep, ForwardLimits, Schedule, Shard, Tables,
    layer::{Layer, LayerShape},
};
pub(crate) use buffers::Buffers;
use capture::Capture;

pub use load::LoadOptions;

/// One rank's shard of a model on a device, with all buffers a pass needs:
/// after loading, [`Self::forward`] allocates nothing.
pub struct Transformer<B: Backend> {
    model: ModelConfig,
    shard: Shard,
    limits: ForwardLimits,
    shape: LayerShape<B>,
    /// Vocabulary rows of this rank.
    embedding: B::Matrix,
    /// The norm before each layer's attention.
    input_norms: Vec<B::Vector>,
    layers: Vec<Layer<B>>,
    norm: B::Vector,
    /// `None`: the embedding table is the head.
    head: Option<B::Matrix>,
    /// Every rank's vocabulary rows.
    vocab_widths: Vec<usize>,
    buffers: Buffers<B::Tensor>,
    /// The batch of the pass.
    inputs: B::Inputs,
    /// Of the weights, the buffers and the capture that there are.
    passes: B::Passes,
    /// `0..max_tokens`: row numbers of logit blocks.
    numbers: Vec<u32>,
    /// What is kept for a drafter, if anything.
    capture: Option<Capture<B>>,
    origin: WeightOrigin,
}

/// Some rows of logits, on the host of the rank that leads.
#[derive(Debug, Clone, Copy)]
pub struct LogitBlock<'a> {
    /// Index in `batch.logit_tokens` of the first row.
    pub first: usize,
    /// `[rows, vocab]`, row-major.
    pub logits: &'a [f32],
    /// Columns.
    pub vocab: usize,
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

    /// The ranks that it is split over.
    pub fn axis(&self) -> Axis {
        self.shape.axis
    }

    /// What the buffers were allocated for.
    pub fn limits(&self) -> ForwardLimits {
        self.limits
    }

    /// The cache this rank needs for `pages` pages.
    pub fn kv_shape(&self, pages: usize, page_size: usize, dtype: KvCacheDtype) -> KvShape {
        kv_shape(&self.model, &self.shard, pages, page_size, dtype)
    }

    /// Bytes of packed weights on the device.
    pub fn weight_bytes(&self, backend: &B) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        let matrices = std::iter::once(&self.embedding).chain(&self.head);
        let bytes = |matrix| backend.matrix_bytes(matrix);
        matrices.chain(layers).map(bytes).sum()
    }

    /// This rank's rows of the tables of tokens: whole on a rank alone.
    pub fn tables(&self) -> Tables<'_, B> {
        Tables {
            embedding: &self.embedding,
            head: self.head.as_ref().unwrap_or(&self.embedding),
        }
    }

    /// The collectives of a pass. Equal on all ranks.
    pub fn schedule(&self) -> Schedule {
        let reduce = CollectiveStep {
            kind: CollectiveKind::AllReduce,
            width: self.model.hidden_size,
        };
        // One after the embedding, then one after attention and one after the
        // MLP of every layer; the last layer's run over wanted tokens only,
        // unless all its outputs are kept.
        let (narrow, wanted) = match self.keeps_last_hidden() {
            true => (0, 0),
            false => (1, 2),
        };
        Schedule {
            tokens: vec![reduce; 1 + 2 * (self.model.num_layers - narrow)],
            logit_tokens: vec![reduce; wanted],
            block: vec![CollectiveStep {
                kind: CollectiveKind::Gather,
                width: self.model.vocab_size,
            }],
            block_rows: self.limits.logit_block_rows,
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
    KvShape {
        layers: model.num_layers,
        kv_heads: shard.kv_heads.len(),
        head_dim: model.head_dim,
        pages,
        page_size,
        dtype,
    }
}

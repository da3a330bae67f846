//! Shapes that several operations share.

use std::num::NonZeroUsize;
use std::ops::Range;

use lockstep_types::{GatedDeltaSpec, KvCacheDtype, StateLimits};

/// Attention heads of one rank. The columns of `qkv` are all query heads, then all key heads,
/// then all value heads; or query heads alone, where the cache has keys and values of another
/// layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads. Query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor of the logits before the softmax.
    pub scale: f32,
    /// Bound of the scaled logits, `c · tanh(x / c)` of each; `None` leaves them as they are.
    pub softcap: Option<f32>,
    /// Most positions that a query sees, its own included: the nearest ones. `None` shows it
    /// all.
    pub window: Option<NonZeroUsize>,
    /// Columns of a key, from the first on, that are the value too; `None` where values lie apart.
    /// With some, each token has one key for all heads, and `qkv` has no columns of values.
    pub latent: Option<usize>,
    /// True if the cache has the keys and values of another layer, which has written those of all
    /// tokens of the batch: `qkv` has queries alone, and nothing is written.
    pub reads_only: bool,
    /// True if each query head has a sink, a score beside those of positions. Operations get
    /// their values apart.
    pub sinks: bool,
}

impl AttentionShape {
    /// Heads that attend to all positions up to their own.
    pub const fn dense(heads: usize, kv_heads: usize, head_dim: usize, scale: f32) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            softcap: None,
            window: None,
            latent: None,
            reads_only: false,
            sinks: false,
        }
    }

    /// Returns the number of key heads in `qkv`, which are as many as value heads; none where
    /// nothing is written.
    pub fn written_heads(&self) -> usize {
        match self.reads_only {
            true => 0,
            false => self.kv_heads,
        }
    }

    /// Returns the positions that a query sees of the `count` ones up to its own. A tree's node
    /// counts its ancestors and itself behind the cached positions, so a deep node sees fewer of
    /// these. Example: the query at position 9 is behind 10 positions, of which a window of 4
    /// shows it positions 6 to 9.
    pub fn visible(&self, count: usize) -> Range<usize> {
        let first = self
            .window
            .map_or(0, |window| count.saturating_sub(window.get()));
        first..count
    }

    /// Returns the number of columns of `qkv`.
    pub fn qkv_width(&self) -> usize {
        let of_token = match self.latent {
            None => 2 * self.written_heads(),
            Some(_) => 1,
        };
        (self.heads + of_token) * self.head_dim
    }

    /// Returns the width of a value.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Returns the number of columns of the attention output.
    pub fn out_width(&self) -> usize {
        self.heads * self.value_dim()
    }
}

/// Size of the paged cache that one rank has for a group of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of the group: the cache's layers write to the cells of this group in
    /// [`crate::Batch::cells`] and read its page tables. Several caches may follow one group.
    pub group: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of key/value heads on this rank.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Columns of a key, from the first on, that are the value too, where there is no other;
    /// `None` where a cell has a key and a value.
    pub latent: Option<usize>,
    /// Number of pages.
    pub pages: usize,
    /// Number of tokens per page.
    pub page_size: usize,
    /// Element type.
    pub dtype: KvCacheDtype,
}

impl KvShape {
    /// Returns the bytes of keys and values of one token in all layers of the cache.
    pub fn bytes_per_token(&self) -> usize {
        self.parts() * self.layers * self.kv_heads * self.dtype.row_bytes(self.head_dim)
    }

    /// Returns the number of rows of a head in a cell: key and value, or a key that is both.
    pub fn parts(&self) -> usize {
        if self.latent.is_some() { 1 } else { 2 }
    }
}

/// Heads of a recurrence on one rank. Those of Mamba-2 have other names there: queries are `C`, keys
/// `B` and values `x`, and key heads are groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Number of heads of queries and keys.
    pub key_heads: usize,
    /// Number of heads of values. Head `h` reads key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a head of queries and keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// Taps of the convolution, the token's own included.
    pub taps: usize,
}

impl DeltaShape {
    /// Returns the shape of these numbers of heads of keys and of values, with heads of these
    /// widths.
    pub const fn new(
        [key_heads, value_heads]: [usize; 2],
        [key_dim, value_dim]: [usize; 2],
        taps: usize,
    ) -> Self {
        Self {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
        }
    }

    /// Returns the heads of one of `ranks` ranks that split those of `spec`.
    pub fn of(spec: &GatedDeltaSpec, ranks: usize) -> Self {
        Self {
            key_heads: spec.key_heads / ranks,
            value_heads: spec.value_heads / ranks,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
            taps: spec.taps,
        }
    }

    /// Returns the columns of all queries, and of all keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Returns the columns of all values, and of the output.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns the channels of the convolution: queries, then keys, then values.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Returns the elements of the matrices of one state in one layer.
    pub fn matrices(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Returns the elements of one state in one layer: matrices, and the last columns of the
    /// convolution.
    pub fn state(&self) -> usize {
        self.matrices() + self.channels() * (self.taps - 1)
    }

    /// Returns the elements of the record of one node in one layer: keys, updates, decays, and the
    /// column of the convolution.
    pub fn record(&self) -> usize {
        self.key_width() + self.value_width() + self.value_heads + self.channels()
    }
}

/// Channels of a gated short convolution on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Number of channels.
    pub channels: usize,
    /// Taps of the convolution, the token's own included.
    pub taps: usize,
}

/// Rule by which the states of a layer go on, with the sizes of what they keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    /// The gated delta rule: [`crate::Ops::gated_delta`].
    Delta(DeltaShape),
    /// The selective state space of Mamba-2: [`crate::Ops::mamba2`].
    Mamba2(DeltaShape),
    /// A gated short convolution, without matrices: [`crate::Ops::short_convolution`].
    Convolution(ConvolutionShape),
}

impl Recurrence {
    /// Returns the heads that have matrices; `None` where there are none.
    pub fn heads(&self) -> Option<&DeltaShape> {
        match self {
            Self::Delta(heads) | Self::Mamba2(heads) => Some(heads),
            Self::Convolution(_) => None,
        }
    }

    /// Returns the channels of the convolution.
    pub fn convolution(&self) -> ConvolutionShape {
        match self {
            Self::Delta(heads) | Self::Mamba2(heads) => ConvolutionShape {
                channels: heads.channels(),
                taps: heads.taps,
            },
            Self::Convolution(shape) => *shape,
        }
    }

    /// Returns the elements of the matrices of one state in one layer.
    pub fn matrices(&self) -> usize {
        self.heads().map_or(0, DeltaShape::matrices)
    }

    /// Returns the elements of one state in one layer: matrices, and the last columns of the
    /// convolution.
    pub fn state(&self) -> usize {
        let ConvolutionShape { channels, taps } = self.convolution();
        self.matrices() + channels * (taps - 1)
    }

    /// Returns the elements of the record of one node in one layer: keys, updates and decays of
    /// heads, and the column of the convolution.
    pub fn record(&self) -> usize {
        match self {
            Self::Delta(heads) | Self::Mamba2(heads) => heads.record(),
            Self::Convolution(shape) => shape.channels,
        }
    }
}

/// States and records of recurrent layers of one shape on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatesShape {
    /// Number of layers.
    pub layers: usize,
    /// Rule of each layer.
    pub recurrence: Recurrence,
    /// Numbers of states and records.
    pub limits: StateLimits,
}

impl StatesShape {
    /// Returns the bytes of all states and records.
    pub fn bytes(&self) -> u64 {
        let of_layer = |elements: usize| (4 * self.layers * elements) as u64;
        let (state, record) = (self.recurrence.state(), self.recurrence.record());
        self.limits.bytes(of_layer(state), of_layer(record))
    }
}

/// Rotation angles, computed once in f64 and kept as f32:
/// `cos[p · half + i]`, `sin[p · half + i]` for position `p` and pair `i`
/// (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Number of pairs per head: `head_dim / 2`.
    pub half: usize,
    /// Cosines, `[positions, half]`.
    pub cos: Vec<f32>,
    /// Sines, `[positions, half]`.
    pub sin: Vec<f32>,
    /// Factors of queries behind their rotation, `[positions]`; empty where all are one.
    pub queries: Vec<f32>,
}

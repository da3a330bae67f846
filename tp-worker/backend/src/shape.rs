//! Shapes that several operations share.

use lockstep_types::KvCacheDtype;

/// Attention heads of one rank and how `qkv` columns are laid out:
/// all query heads, then all key heads, then all value heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Logits are multiplied by it before the softmax.
    pub scale: f32,
}

impl AttentionShape {
    /// Columns of `qkv`.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
    /// Columns of the attention output.
    pub fn out_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Size of the paged cache of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers.
    pub layers: usize,
    /// Key/value heads on this rank.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Pages.
    pub pages: usize,
    /// Tokens per page.
    pub page_size: usize,
    /// Element type.
    pub dtype: KvCacheDtype,
}

impl KvShape {
    /// Bytes of keys and values one token takes in all layers of this rank.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.layers * self.kv_heads * self.dtype.row_bytes(self.head_dim)
    }
}

/// Rotation angles, computed once in f64 and kept as f32:
/// `cos[p · half + i]`, `sin[p · half + i]` for position `p` and pair `i`
/// (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Pairs per head: `head_dim / 2`.
    pub half: usize,
    /// Cosines, `[positions, half]`.
    pub cos: Vec<f32>,
    /// Sines, `[positions, half]`.
    pub sin: Vec<f32>,
}

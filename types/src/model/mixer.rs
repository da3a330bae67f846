//! The mixers that a layer may have: their sizes, and the names of their tensors.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// Block of a layer that lets positions see each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention over the positions before, all of them or those of a window.
    Attention(AttentionSpec),
}

/// Grouped-query attention (Ainslie et al., arXiv:2305.13245) with rotary positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, which divide the query heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor of the scores, `head_dim^-½` in most families.
    pub scale: f32,
    /// Sliding window: a token at position `p` sees the positions `p - window + 1` to `p`.
    /// `None` shows it all positions up to its own.
    pub window: Option<NonZeroUsize>,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// True if the heads of q and k have RMS norms.
    pub qk_norm: bool,
    /// True if q, k and v have biases.
    pub qkv_bias: bool,
    /// True if the output projection has a bias.
    pub output_bias: bool,
    /// Names of the tensors.
    pub names: AttentionNames,
}

/// Names of an attention's tensors, as [`crate::TensorNames`] says. Projections with one name
/// lie in one tensor, one below the other. Example: query, key and value have the name
/// "self_attn.qkv_proj". Then the tensor's first rows are the queries', the next the keys', and
/// the last the values'.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionNames {
    /// Projection to queries.
    pub query: String,
    /// Projection to keys.
    pub key: String,
    /// Projection to values.
    pub value: String,
    /// Projection from attention to the residual stream.
    pub output: String,
    /// Norm over each head of the queries.
    pub query_norm: String,
    /// Norm over each head of the keys.
    pub key_norm: String,
}

/// Names of Llama, and of the families that are written as Llamas.
impl Default for AttentionNames {
    fn default() -> Self {
        let name = str::to_owned;
        Self {
            query: name("self_attn.q_proj"),
            key: name("self_attn.k_proj"),
            value: name("self_attn.v_proj"),
            output: name("self_attn.o_proj"),
            query_norm: name("self_attn.q_norm"),
            key_norm: name("self_attn.k_norm"),
        }
    }
}

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change to the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Changes to the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// All positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a smooth ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length the model was first trained on.
        original_max_position: usize,
    },
}

impl AttentionSpec {
    /// Returns plain attention with Llama's names: without window, norms and biases, with the
    /// usual scale and the rotary embedding of the first Llamas.
    pub fn dense(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            window: None,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            qk_norm: false,
            qkv_bias: false,
            output_bias: false,
            names: AttentionNames::default(),
        }
    }

    /// Returns the number of key/value heads that each of `tp_size` ranks holds. One copy of a
    /// key/value head serves all of the rank's query heads that share it.
    pub fn kv_heads_per_rank(&self, tp_size: usize) -> usize {
        let local = self.heads / tp_size;
        let group = self.heads / self.kv_heads;
        let (mut a, mut b) = (local, group);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        local / a
    }
}

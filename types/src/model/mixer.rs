//! The mixers that a layer may have: their sizes, and the names of their tensors.

mod gated_delta;
mod mamba2;
mod short_convolution;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use super::latent::LatentAttentionSpec;
use super::rope::RopeConfig;
pub use gated_delta::{GatedDeltaInputs, GatedDeltaNames, GatedDeltaSpec};
pub use mamba2::{Mamba2Names, Mamba2Spec};
pub use short_convolution::{ShortConvolutionNames, ShortConvolutionSpec};

/// Block of a layer that lets positions see each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention over the positions before, all of them or those of a window.
    Attention(AttentionSpec),
    /// Attention to latents, of which each position has one.
    LatentAttention(LatentAttentionSpec),
    /// A recurrence over the positions before.
    GatedDelta(GatedDeltaSpec),
    /// A selective state space.
    Mamba2(Mamba2Spec),
    /// A convolution over the last few positions.
    ShortConvolution(ShortConvolutionSpec),
    /// None: the layer is an MLP alone.
    None,
}

impl Mixer {
    /// Returns the number of heads, which ranks divide: query heads of attention, key heads of a
    /// Gated DeltaNet, heads of Mamba-2, channels of a short convolution. Without a mixer there are 0,
    /// which any ranks divide.
    pub fn heads(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.heads,
            Self::LatentAttention(latent) => latent.heads,
            Self::GatedDelta(delta) => delta.key_heads,
            Self::Mamba2(mamba) => mamba.heads,
            Self::ShortConvolution(convolution) => convolution.channels,
            Self::None => 0,
        }
    }

    /// Returns the rotation of queries and keys, if there is one.
    pub fn rope(&self) -> Option<&RopeConfig> {
        match self {
            Self::Attention(attention) => Some(&attention.rope),
            Self::LatentAttention(latent) => Some(&latent.rope),
            Self::GatedDelta(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// Returns the rotation of queries and keys, to change.
    pub fn rope_mut(&mut self) -> Option<&mut RopeConfig> {
        match self {
            Self::Attention(attention) => Some(&mut attention.rope),
            Self::LatentAttention(latent) => Some(&mut latent.rope),
            Self::GatedDelta(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// Returns the number of elements of all matrices, in a model of width `hidden`.
    pub fn elements(&self, hidden: usize) -> usize {
        match self {
            Self::Attention(attention) => {
                let gates = usize::from(attention.output_gate) * attention.heads;
                let own = usize::from(attention.kv_of.is_none()) * attention.kv_heads;
                let heads = 2 * (attention.heads + own) + gates;
                hidden * attention.head_dim * heads
            }
            Self::LatentAttention(latent) => latent.elements(hidden),
            Self::GatedDelta(delta) => {
                let values = delta.value_heads * delta.value_dim;
                hidden * (delta.channels(1) + 2 * values + 2 * delta.value_heads)
            }
            Self::Mamba2(mamba) => hidden * (mamba.rows() + mamba.width()),
            Self::ShortConvolution(convolution) => 4 * hidden * convolution.channels,
            Self::None => 0,
        }
    }

    /// Returns the bytes of one state, and of the record of one node, on each of `ranks` ranks;
    /// `None` for a mixer that keeps a cache of positions instead.
    pub fn state_and_record_bytes(&self, ranks: usize) -> Option<[u64; 2]> {
        Some(match self {
            Self::Attention(_) | Self::LatentAttention(_) | Self::None => return None,
            Self::GatedDelta(own) => [own.state_bytes(ranks), own.record_bytes(ranks)],
            Self::Mamba2(own) => [own.state_bytes(ranks), own.record_bytes(ranks)],
            Self::ShortConvolution(own) => [own.state_bytes(ranks), own.record_bytes(ranks)],
        })
    }

    /// Returns the multiplications and additions of a query with one cached position.
    pub fn operations_per_pair(&self) -> usize {
        match self {
            Self::Attention(attention) => 4 * attention.heads * attention.head_dim,
            Self::LatentAttention(own) => 2 * own.heads * (2 * own.latent + own.rotated),
            Self::GatedDelta(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => 0,
        }
    }

    /// Returns the multiplications and additions of a token in a recurrence: those of its
    /// convolution and of its state, without projections, activations and norms. It is 0 for a
    /// mixer that has none.
    pub fn recurrence_operations(&self) -> usize {
        match self {
            Self::GatedDelta(own) => own.operations(),
            Self::Mamba2(own) => own.operations(),
            Self::ShortConvolution(own) => own.operations(),
            Self::Attention(_) | Self::LatentAttention(_) | Self::None => 0,
        }
    }
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
    /// Bound of the scores: `c · tanh(x / c)` of each scaled score `x`. `None` leaves them as
    /// they are.
    pub softcap: Option<f32>,
    /// Sliding window: a token at position `p` sees the positions `p - window + 1` to `p`.
    /// `None` shows it all positions up to its own.
    pub window: Option<NonZeroUsize>,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Norms of q and k.
    pub qk_norm: QkNorm,
    /// Projection and norm of values.
    pub values: Values,
    /// Number of an earlier layer with the same heads and window, whose keys and values it reads
    /// from the cache: the layer has queries alone, and writes none. `None` if it has keys and
    /// values of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_of: Option<usize>,
    /// True if q, k and v have biases.
    pub qkv_bias: bool,
    /// True if the output projection has a bias.
    pub output_bias: bool,
    /// True if each query head has a sink (Xiao et al., arXiv:2309.17453): a score that joins the
    /// softmax beside those of positions, and weighs no value.
    pub sinks: bool,
    /// True if the output of each query head is multiplied by `σ` of a gate. The tensor of the
    /// queries has the rows of each head in turn: its query, then its gate.
    pub output_gate: bool,
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
    /// Norm of the queries.
    pub query_norm: String,
    /// Norm of the keys.
    pub key_norm: String,
    /// Sinks of the query heads: the whole name, as they are no projection.
    pub sinks: String,
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
            sinks: name("self_attn.sinks"),
        }
    }
}

/// Projection and norm of values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// A projection of their own.
    #[default]
    Projected,
    /// A projection of their own, and a norm of each head without weights.
    Normed,
    /// The projection of the keys before their norm and rotation, and a norm of each head without
    /// weights.
    NormedKeys,
}

/// Norms of queries and keys, before their rotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// None.
    #[default]
    None,
    /// Each head by itself, with weights `[head_dim]` that all heads share.
    PerHead,
    /// All query heads together, and all key heads together, with a weight for each column.
    Whole,
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
            softcap: None,
            window: None,
            rope: RopeConfig::plain(10_000.0),
            qk_norm: QkNorm::None,
            values: Values::Projected,
            kv_of: None,
            qkv_bias: false,
            output_bias: false,
            sinks: false,
            output_gate: false,
            names: AttentionNames::default(),
        }
    }

    /// Returns the number of key/value heads that each of `tp_size` ranks holds. One copy of a
    /// key/value head serves all of the rank's query heads that share it.
    pub fn kv_heads_per_rank(&self, tp_size: usize) -> usize {
        let local = self.heads / tp_size;
        local / common_divisor(local, self.heads / self.kv_heads)
    }
}

/// Returns the largest number that divides both.
fn common_divisor(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

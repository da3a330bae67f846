//! The mixers that a layer may have: their sizes, and the names of their tensors.

mod gated_delta;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

pub use gated_delta::{GatedDeltaInputs, GatedDeltaNames, GatedDeltaSpec};

/// Block of a layer that lets positions see each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention over the positions before, all of them or those of a window.
    Attention(AttentionSpec),
    /// A recurrence over the positions before.
    GatedDelta(GatedDeltaSpec),
}

impl Mixer {
    /// Returns the number of rows of the width of the residual stream that its projections have:
    /// all that a token is multiplied with.
    pub fn rows(&self) -> usize {
        match self {
            Self::Attention(attention) => {
                let gates = usize::from(attention.output_gate) * attention.heads;
                (2 * (attention.heads + attention.kv_heads) + gates) * attention.head_dim
            }
            Self::GatedDelta(delta) => {
                let values = delta.value_heads * delta.value_dim;
                delta.channels(1) + 2 * values + 2 * delta.value_heads
            }
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

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of each head's columns that are rotated, from the first on; an even number. `None`
    /// rotates all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated: Option<usize>,
    /// Change to the frequencies for long contexts.
    pub scaling: RopeScaling,
    /// Growth of queries with their position; `None` in most families.
    pub query_scaling: Option<QueryScaling>,
    /// Divisors of each pair's frequency; `None` in most families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<LongRope>,
}

/// LongRoPE (Ding et al., arXiv:2402.13753): a divisor for each pair's frequency, from one list in
/// a server of short texts and from another in a server of long ones. Queries and keys grow by
/// `attention_factor`.
///
/// The choice is made once, by the longest text that is served, so that cached keys always fit.
/// Reference implementations change their choice where a text grows past the original length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// Divisors where no text is longer than the original length.
    pub short: Vec<f64>,
    /// Divisors where texts may be longer.
    pub long: Vec<f64>,
    /// Context length the model was first trained on.
    pub original_max_position: usize,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
    /// Tokens of the longest text that is served.
    pub served: usize,
}

impl LongRope {
    /// Returns true if the divisors for long texts are used.
    pub fn is_long(&self) -> bool {
        self.served > self.original_max_position
    }

    /// Returns the divisor of each pair.
    pub fn divisors(&self) -> &[f64] {
        match self.is_long() {
            true => &self.long,
            false => &self.short,
        }
    }
}

/// Factor `1 + beta · ln(1 + ⌊p / original_max_position⌋)` of the queries at position `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryScaling {
    /// Strength of the growth.
    pub beta: f64,
    /// Length of a step. Queries before this position have the factor one.
    pub original_max_position: usize,
}

/// Changes to the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// No rotation at all (NoPE, Kazemnejad et al., arXiv:2305.19466): the layer does not know
    /// positions.
    Unrotated,
    /// YaRN (Peng et al., arXiv:2309.00071): long wavelengths divided by `factor`, short ones
    /// kept, a ramp over the pairs between. Queries and keys grow by `attention_factor`.
    Yarn {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Pairs that turn more often than this within the original length are kept.
        beta_fast: f64,
        /// Pairs that turn less often than this within the original length are divided.
        beta_slow: f64,
        /// Context length the model was first trained on.
        original_max_position: usize,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// True if the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
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

impl RopeConfig {
    /// Returns a rotation of unchanged frequencies with the base `theta`.
    pub fn plain(theta: f64) -> Self {
        Self {
            theta,
            rotated: None,
            scaling: RopeScaling::Default,
            query_scaling: None,
            long: None,
        }
    }

    /// Returns the rotation by nothing, of a layer that does not know positions.
    pub fn unrotated() -> Self {
        Self {
            scaling: RopeScaling::Unrotated,
            ..Self::plain(1.0)
        }
    }
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
        let group = self.heads / self.kv_heads;
        let (mut a, mut b) = (local, group);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        local / a
    }
}

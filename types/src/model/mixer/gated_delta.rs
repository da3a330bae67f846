//! Gated DeltaNet: a linear attention whose memory of a text is a matrix for each head.

use serde::{Deserialize, Serialize};

/// Gated DeltaNet (Yang et al., arXiv:2412.06464): a short causal convolution, then the gated delta
/// rule over a state of one matrix `[key_dim, value_dim]` for each value head, then a gated norm.
///
/// For each token and value head, in f32, with `q` and `k` of length one behind convolution and
/// silu, and `q` times `key_dim^-½`:
///
/// * `β = σ(b)`, `g = −exp(a_log) · softplus(a + dt_bias)`;
/// * `S ← exp(g) · S`, `δ = β · (v − Sᵀk)`, `S ← S + k δᵀ`, `o = Sᵀq`;
/// * the head's columns are `w · o/rms(o) · silu(z)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of the key heads: head `h` reads key head
    /// `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a head of queries and keys, a multiple of [`Self::UNIT`].
    pub key_dim: usize,
    /// Width of a head of values, a multiple of [`Self::UNIT`].
    pub value_dim: usize,
    /// Taps of the convolution, the token's own included; 2 to [`Self::MOST_TAPS`].
    pub taps: usize,
    /// Names of the tensors.
    pub names: GatedDeltaNames,
}

/// Names of the tensors of a Gated DeltaNet, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedDeltaNames {
    /// Projections to all that a token brings.
    pub inputs: GatedDeltaInputs,
    /// Convolution over queries, keys and values, `[channels, 1, taps]`.
    pub convolution: String,
    /// Logarithms of the decay of each value head: the whole name.
    pub a_log: String,
    /// Bias of the decay of each value head: the whole name.
    pub dt_bias: String,
    /// Weights of the gated norm, which all heads share.
    pub norm: String,
    /// Projection to the residual stream.
    pub output: String,
}

/// Layout of the projections of a Gated DeltaNet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatedDeltaInputs {
    /// A tensor for each part: rows of all queries, then of all keys, then of all values in one;
    /// those of gates `z`; and a row for each value head in those of `b` and of `a`.
    Apart {
        /// Queries, keys and values.
        qkv: String,
        /// Gates of the output.
        z: String,
        /// Strengths of the update.
        b: String,
        /// Decays.
        a: String,
    },
    /// Two tensors with the rows of each key head in turn: its query, its key, the values and then
    /// the gates of its value heads; and their `b`, then their `a`.
    ByKeyHead {
        /// Queries, keys, values and gates.
        qkvz: String,
        /// Strengths of the update, and decays.
        ba: String,
    },
}

/// Names of Qwen3.5.
impl Default for GatedDeltaNames {
    fn default() -> Self {
        let name = |name: &str| format!("linear_attn.{name}");
        Self {
            inputs: GatedDeltaInputs::Apart {
                qkv: name("in_proj_qkv"),
                z: name("in_proj_z"),
                b: name("in_proj_b"),
                a: name("in_proj_a"),
            },
            convolution: name("conv1d"),
            a_log: name("A_log"),
            dt_bias: name("dt_bias"),
            norm: name("norm"),
            output: name("out_proj"),
        }
    }
}

impl GatedDeltaSpec {
    /// Divisor of the widths of heads.
    pub const UNIT: usize = 16;
    /// Most taps that are served.
    pub const MOST_TAPS: usize = 8;

    /// Returns the channels of the convolution on each of `ranks` ranks: queries, keys and values.
    pub fn channels(&self, ranks: usize) -> usize {
        let Self {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self;
        (2 * key_heads * key_dim + value_heads * value_dim) / ranks
    }

    /// Returns the multiplications and additions of a token: those of the convolution, and for
    /// each element of a state one of its decay, and two each of `Sᵀk`, of the update, and of
    /// `Sᵀq`.
    pub fn operations(&self) -> usize {
        let elements = self.value_heads * self.key_dim * self.value_dim;
        2 * self.taps * self.channels(1) + 7 * elements
    }

    /// Returns the bytes of one state on each of `ranks` ranks: matrices of heads, and the last
    /// columns of the convolution.
    pub fn state_bytes(&self, ranks: usize) -> u64 {
        let matrices = self.value_heads * self.key_dim * self.value_dim / ranks;
        4 * (matrices + self.channels(ranks) * (self.taps - 1)) as u64
    }

    /// Returns the bytes of the record of one node on each of `ranks` ranks: keys, updates and
    /// decays of heads, and the column of the convolution.
    pub fn record_bytes(&self, ranks: usize) -> u64 {
        let heads = self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1);
        4 * (heads / ranks + self.channels(ranks)) as u64
    }
}

//! Mamba-2: a state space whose memory of a text is a matrix for each head.

use serde::{Deserialize, Serialize};

/// Mamba-2 (Dao and Gu, arXiv:2405.21060): a short causal convolution, then a selective state
/// space of one matrix `[state_dim, head_dim]` for each head, then a gated norm.
///
/// For each token and head, in f32, with `x`, `B` and `C` behind convolution and silu:
///
/// * `Δ = softplus(dt + dt_bias)`, without bounds;
/// * `S ← exp(−exp(a_log) · Δ) · S + B (Δ · x)ᵀ`, `y = Sᵀ C + d · x`;
/// * behind all heads `y ← y · silu(z)`, and then a norm over the columns of each group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mamba2Spec {
    /// Heads.
    pub heads: usize,
    /// Width of a head, a multiple of [`crate::GatedDeltaSpec::UNIT`].
    pub head_dim: usize,
    /// Groups of neighbouring heads, equally many in each, that share `B` and `C`, and whose
    /// columns are normed together. They divide the heads.
    pub groups: usize,
    /// Width of `B` and of `C`, a multiple of [`crate::GatedDeltaSpec::UNIT`].
    pub state_dim: usize,
    /// Taps of the convolution, the token's own included; 2 to
    /// [`crate::GatedDeltaSpec::MOST_TAPS`].
    pub taps: usize,
    /// True if the convolution has a bias.
    pub convolution_bias: bool,
    /// True if the projections have biases.
    pub bias: bool,
    /// Names of the tensors.
    pub names: Mamba2Names,
}

/// Names of the tensors of a Mamba-2 block, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mamba2Names {
    /// Projections to `z`, then `x`, `B`, `C`, then `dt`, in one tensor.
    pub inputs: String,
    /// Convolution over `x`, `B` and `C`, `[channels, 1, taps]`.
    pub convolution: String,
    /// Logarithms of the decay of each head: the whole name.
    pub a_log: String,
    /// Factor of `x` in the output of each head: the whole name.
    pub skip: String,
    /// Bias of the step of each head: the whole name.
    pub dt_bias: String,
    /// Weights of the norm behind all heads, one for each column.
    pub norm: String,
    /// Projection to the residual stream.
    pub output: String,
}

impl Mamba2Names {
    /// Returns the usual names behind `prefix`, such as "mamba.".
    pub fn below(prefix: &str) -> Self {
        let name = |name: &str| format!("{prefix}{name}");
        Self {
            inputs: name("in_proj"),
            convolution: name("conv1d"),
            a_log: name("A_log"),
            skip: name("D"),
            dt_bias: name("dt_bias"),
            norm: name("norm"),
            output: name("out_proj"),
        }
    }
}

impl Mamba2Spec {
    /// Returns the columns of all heads.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the channels of the convolution of the whole model: `x`, `B` and `C`.
    pub fn channels(&self) -> usize {
        self.width() + 2 * self.groups * self.state_dim
    }

    /// Returns the rows of the tensor of the projections.
    pub fn rows(&self) -> usize {
        self.width() + self.channels() + self.heads
    }

    /// Returns the number of heads of each of `ranks` ranks that share one copy of `B` and `C`. A
    /// rank that has a part of a group has a copy for that part.
    pub fn shared_by(&self, ranks: usize) -> usize {
        super::common_divisor(self.heads / ranks, self.heads / self.groups)
    }

    /// Returns the copies of `B`, and of `C`, on each of `ranks` ranks.
    pub fn groups_per_rank(&self, ranks: usize) -> usize {
        self.heads / ranks / self.shared_by(ranks)
    }

    /// Returns the multiplications and additions of a token: those of the convolution, and for
    /// each element of a state one of its decay, and two each of the update and of `SᵀC`.
    pub fn operations(&self) -> usize {
        let elements = self.width() * self.state_dim;
        2 * self.taps * self.channels() + 5 * elements
    }

    /// Returns the bytes of one state on each of `ranks` ranks: matrices of heads, and the last
    /// columns of the convolution.
    pub fn state_bytes(&self, ranks: usize) -> u64 {
        let matrices = self.heads / ranks * self.state_dim * self.head_dim;
        4 * (matrices + self.channels_on(ranks) * (self.taps - 1)) as u64
    }

    /// Returns the bytes of the record of one node on each of `ranks` ranks: `B` of groups, `Δ · x`
    /// and decays of heads, and the column of the convolution.
    pub fn record_bytes(&self, ranks: usize) -> u64 {
        let keys = self.groups_per_rank(ranks) * self.state_dim;
        let heads = self.heads / ranks * (self.head_dim + 1);
        4 * (keys + heads + self.channels_on(ranks)) as u64
    }

    fn channels_on(&self, ranks: usize) -> usize {
        self.width() / ranks + 2 * self.groups_per_rank(ranks) * self.state_dim
    }
}

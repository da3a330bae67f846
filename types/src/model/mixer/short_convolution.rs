//! Gated short convolution: a mixer whose memory of a text is its last few columns.

use serde::{Deserialize, Serialize};

/// Gated short convolution of LFM2 (Liquid AI, arXiv:2511.23404).
///
/// For each token and channel, `b`, `c` and `x` are projections of the input. The output is
/// `c · (w * (b · x))`, projected back, where `*` is a causal convolution over the last
/// [`Self::taps`] tokens. There is no activation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConvolutionSpec {
    /// Channels: columns of each of the three projections.
    pub channels: usize,
    /// Taps of the convolution, the token's own included; 2 to
    /// [`crate::GatedDeltaSpec::MOST_TAPS`].
    pub taps: usize,
    /// True if the convolution and both projections have biases.
    pub bias: bool,
    /// Names of the tensors.
    pub names: ShortConvolutionNames,
}

/// Names of the tensors of a short convolution, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConvolutionNames {
    /// Projections to `b`, then `c`, then `x`, in one tensor.
    pub inputs: String,
    /// Convolution, `[channels, 1, taps]`.
    pub convolution: String,
    /// Projection to the residual stream.
    pub output: String,
}

/// Names of LFM2.
impl Default for ShortConvolutionNames {
    fn default() -> Self {
        let name = |name: &str| format!("conv.{name}");
        Self {
            inputs: name("in_proj"),
            convolution: name("conv"),
            output: name("out_proj"),
        }
    }
}

impl ShortConvolutionSpec {
    /// Returns the multiplications and additions of a token: those of the convolution, and the
    /// two products around it.
    pub fn operations(&self) -> usize {
        self.channels * (2 * self.taps + 2)
    }

    /// Returns the bytes of one state on each of `ranks` ranks: the last columns `b · x`.
    pub fn state_bytes(&self, ranks: usize) -> u64 {
        4 * (self.channels / ranks * (self.taps - 1)) as u64
    }

    /// Returns the bytes of the record of one node on each of `ranks` ranks: its column.
    pub fn record_bytes(&self, ranks: usize) -> u64 {
        4 * (self.channels / ranks) as u64
    }
}

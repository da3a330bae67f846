//! Operands of recurrent layers.

use crate::{ConvolutionShape, DeltaShape};

/// Weights of a Gated DeltaNet between its projections.
#[derive(Debug)]
pub struct GatedDelta<'a, V> {
    /// Number and width of this rank's heads.
    pub shape: DeltaShape,
    /// Taps of the convolution, the oldest first, `[taps·channels]`: for each tap the factors of
    /// all channels.
    pub convolution: &'a V,
    /// Logarithms of the decays `[value_heads]`.
    pub a_log: &'a V,
    /// Biases of the decays `[value_heads]`.
    pub dt_bias: &'a V,
    /// Weights of the norm of each head of the output, `[value_dim]`.
    pub norm: &'a V,
    /// Added to the mean square in that norm.
    pub eps: f32,
}

/// Activations of a Gated DeltaNet over `n` tokens. `T` are a device's activations.
#[derive(Debug)]
pub struct DeltaOperands<'a, T> {
    /// Projections: queries, keys, values, then gates of the output,
    /// `[n, channels + value_heads · value_dim]`.
    pub projected: &'a T,
    /// Projections to the strength of the update of each value head, then to its decay,
    /// `[n, 2·value_heads]`. Their content afterwards is unspecified.
    pub gates: &'a mut T,
    /// Space, `[n, channels]`. Its content afterwards is unspecified.
    pub space: &'a mut T,
}

/// Weights of a Mamba-2 block between its projections.
#[derive(Debug)]
pub struct Mamba2<'a, V> {
    /// Number and width of this rank's heads and groups.
    pub shape: DeltaShape,
    /// Taps of the convolution, the oldest first, `[taps·channels]`: for each tap the factors of
    /// all channels, which are `C` of all groups, then `B`, then `x` of all heads.
    pub convolution: &'a V,
    /// Biases of the convolution `[channels]`; `None` if there are none.
    pub convolution_bias: Option<&'a V>,
    /// Logarithms of the decays `[value_heads]`.
    pub a_log: &'a V,
    /// Biases of the steps `[value_heads]`.
    pub dt_bias: &'a V,
    /// Factors of `x` in the output `[value_heads]`.
    pub skip: &'a V,
}

/// Activations of a Mamba-2 block over `n` tokens. `T` are a device's activations.
#[derive(Debug)]
pub struct Mamba2Operands<'a, T> {
    /// Projections: `C`, `B` and `x`, then gates of the output,
    /// `[n, channels + value_heads · value_dim]`.
    pub projected: &'a T,
    /// Projections to the step of each head, `[n, value_heads]`. Their content afterwards is
    /// unspecified.
    pub steps: &'a mut T,
    /// Space, `[n, channels]`. Its content afterwards is unspecified.
    pub space: &'a mut T,
}

/// Weights of a gated short convolution between its projections.
#[derive(Debug)]
pub struct ShortConvolution<'a, V> {
    /// This rank's channels.
    pub shape: ConvolutionShape,
    /// Taps of the convolution, the oldest first, `[taps·channels]`: for each tap the factors of
    /// all channels.
    pub convolution: &'a V,
    /// Biases of the convolution `[channels]`; `None` if there are none.
    pub bias: Option<&'a V>,
}

/// Groups of neighbouring columns that are normed together. Ranks have some of the columns each, of
/// which a group may lie on several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnGroups {
    /// Number of the groups of all ranks.
    pub count: usize,
    /// Columns of a group, on all ranks together.
    pub width: usize,
    /// Number of the rank's first column among those of all ranks.
    pub first: usize,
}

impl ColumnGroups {
    /// Returns each group that has some of the rank's `columns`, with its part of them.
    pub fn parts(&self, columns: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let Self { width, first, .. } = *self;
        let last = first + columns;
        (first / width..last.div_ceil(width)).map(move |group| {
            let start = (group * width).max(first);
            let end = ((group + 1) * width).min(last);
            (group, start - first..end - first)
        })
    }
}

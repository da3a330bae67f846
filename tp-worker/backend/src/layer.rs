//! Weights of one operation that belong together.

use std::ops::Range;

use crate::{AttentionShape, Axis};

/// A linear map, `x ↦ x · weightᵀ + bias`.
#[derive(Debug)]
pub struct Linear<'a, M, V> {
    /// `[out, in]`.
    pub weight: &'a M,
    /// `[out]`.
    pub bias: Option<&'a V>,
}

impl<'a, M, V> Linear<'a, M, V> {
    /// Returns the map without a bias.
    pub fn unbiased(weight: &'a M) -> Self {
        Self { weight, bias: None }
    }
}

/// A linear map whose inputs are split over ranks. Its result is the sum of the results of the
/// ranks' parts. Only one rank's part has the bias.
#[derive(Debug)]
pub struct RowParallel<'a, M, V> {
    /// The ranks over which the inputs are split.
    pub axis: Axis,
    /// This rank's part.
    pub part: Linear<'a, M, V>,
}

/// The way in which a sum over ranks is shared out by rows. `T` are a device's activations.
#[derive(Debug)]
pub struct Scatter<'a, T> {
    /// Rows of the sum that each rank takes, equal on all ranks. Several ranks may take the
    /// same rows.
    pub rows: &'a [Range<usize>],
    /// This rank's part of the sum with all rows, or space for it. Its content afterwards is
    /// unspecified.
    pub product: &'a mut T,
}

/// A mixture of experts (Shazeer et al., arXiv:1701.06538), each of which is a gated MLP without
/// biases. All experts are alike in shape and format.
#[derive(Debug)]
pub struct Experts<'a, M> {
    /// Number of experts that each row goes through, at most the number of all.
    pub active: usize,
    /// True if the weights of a row's experts are divided by their sum.
    pub renormalized: bool,
    /// Gate rows, then up rows of each expert, `[2·m, in]`.
    pub gate_up: &'a [M],
    /// Projection behind the activation of each expert, `[out, m]`.
    pub down: &'a [M],
}

/// Space of a mixture of experts over `n` rows. The content of all of it is unspecified
/// afterwards. `T` are a device's activations.
#[derive(Debug)]
pub struct ExpertSpace<'a, T> {
    /// Gate and up projections, `[n·active, 2·m]`.
    pub gate_up: &'a mut T,
    /// Product of the activated gate and up, `[n·active, m]`.
    pub activated: &'a mut T,
    /// Results of the experts, `[n·active, out]`.
    pub products: &'a mut T,
}

/// A root-mean-square norm (Zhang & Sennrich, arXiv:1910.07467).
#[derive(Debug)]
pub struct RmsNorm<'a, V> {
    /// `[width]`.
    pub weight: &'a V,
    /// Added to the mean square.
    pub eps: f32,
}

/// Parameters of an attention block between its projections. `V` and `R` are a device's vectors
/// and rotary angles.
#[derive(Debug)]
pub struct Attend<'a, V, R> {
    /// Heads of this rank.
    pub shape: &'a AttentionShape,
    /// Weight `[head_dim]` of the norm of each query head.
    pub q_norm: Option<&'a V>,
    /// Weight `[head_dim]` of the norm of each key head.
    pub k_norm: Option<&'a V>,
    /// Added to the mean square in both norms.
    pub eps: f32,
    /// Angles of every position.
    pub rope: &'a R,
}

// Derived implementations would demand `Clone` and `Copy` of the weights behind the references.
impl<M, V> Clone for Linear<'_, M, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M, V> Copy for Linear<'_, M, V> {}
impl<M, V> Clone for RowParallel<'_, M, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M, V> Copy for RowParallel<'_, M, V> {}
impl<M> Clone for Experts<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Experts<'_, M> {}
impl<V> Clone for RmsNorm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for RmsNorm<'_, V> {}

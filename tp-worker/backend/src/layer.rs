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
    /// Space for this rank's part of the sum, with all rows. Its content afterwards is
    /// unspecified.
    pub product: &'a mut T,
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
impl<V> Clone for RmsNorm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for RmsNorm<'_, V> {}

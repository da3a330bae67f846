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

/// A linear map whose inputs are split over ranks: its result is the sum of
/// what the ranks' parts give. Only one rank's part has the bias.
#[derive(Debug)]
pub struct RowParallel<'a, M, V> {
    /// The ranks.
    pub axis: Axis,
    /// This rank's part.
    pub part: Linear<'a, M, V>,
}

/// How a sum over ranks is shared out by rows; `T` are a device's activations.
#[derive(Debug)]
pub struct Scatter<'a, T> {
    /// Rows that each rank takes of the sum, equal on all ranks. Several may take
    /// the same.
    pub rows: &'a [Range<usize>],
    /// Space for this rank's part of the sum, all rows of it; its content
    /// afterwards is unspecified.
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

/// What an attention block does between its projections; `V` and `R` are a
/// device's vectors and its rotary angles.
#[derive(Debug)]
pub struct Attend<'a, V, R> {
    /// Heads.
    pub shape: &'a AttentionShape,
    /// Norms the query heads, one by one: `[head_dim]`.
    pub q_norm: Option<&'a V>,
    /// Norms the key heads.
    pub k_norm: Option<&'a V>,
    /// Added to the mean square in both norms.
    pub eps: f32,
    /// Angles of every position.
    pub rope: &'a R,
}

// Derived, these would ask the same of the weights behind the references.
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

//! Weights of one operation that belong together.

use crate::Axis;

/// A linear map, `x ↦ x · weightᵀ + bias`.
#[derive(Debug)]
pub struct Linear<'a, M, V> {
    /// `[out, in]`.
    pub weight: &'a M,
    /// `[out]`.
    pub bias: Option<&'a V>,
}

/// A linear map whose inputs are split over ranks: its result is the sum of
/// what the ranks' parts give. One of them alone has the bias.
#[derive(Debug)]
pub struct RowParallel<'a, M, V> {
    /// The ranks.
    pub axis: Axis,
    /// This rank's part.
    pub part: Linear<'a, M, V>,
}

/// A root-mean-square norm (Zhang & Sennrich, arXiv:1910.07467).
#[derive(Debug)]
pub struct RmsNorm<'a, V> {
    /// `[width]`.
    pub weight: &'a V,
    /// Added to the mean square.
    pub eps: f32,
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

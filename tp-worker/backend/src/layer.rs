//! Weights of one operation that belong together.

use std::ops::Range;

use lockstep_types::{ExpertGate, Routing};

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

/// A mixture of experts (Shazeer et al., arXiv:1701.06538), each of which is a gated MLP. All
/// experts are alike in shape and format. Lists of experts have those that are here: neighbours
/// among those that the router scores, and behind them the shared ones. Experts that are on other
/// ranks add nothing.
#[derive(Debug)]
pub struct Experts<'a, M, V> {
    /// Number of experts that the router scores.
    pub scored: usize,
    /// Number of the first of these that is here.
    pub first: usize,
    /// Number of experts that are chosen for each row, at most the number of those that the router
    /// scores.
    pub active: usize,
    /// Number of experts here that the router does not score. Each row goes through all of them,
    /// with the weight one.
    pub shared: usize,
    /// Rule by which experts are chosen and weighed.
    pub routing: Routing,
    /// Values `[scored]` that are added to the weights for the choice alone; `None` if choices go
    /// by the weights.
    pub correction: Option<&'a V>,
    /// Factors `[scored]` of the weights, after the rule; `None` if there are none.
    pub scales: Option<&'a V>,
    /// Gate rows, then up rows of each expert, `[2·m, in]`; up rows alone, `[m, in]`, of experts
    /// without gates.
    pub gate_up: &'a [M],
    /// Biases of gate and up of all experts, one behind the other, `[experts·2·m]`; `None` if
    /// there are none.
    pub gate_up_bias: Option<&'a V>,
    /// Function from gate and up to the columns behind them.
    pub gate: ExpertGate,
    /// Projection behind the activation of each expert, `[out, m]`.
    pub down: &'a [M],
    /// Biases of these projections, one behind the other, `[experts·out]`, which are weighed as
    /// the products are; `None` if there are none.
    pub down_bias: Option<&'a V>,
}

impl<M, V> Experts<'_, M, V> {
    /// Returns the number of experts that each row goes through, with the shared ones.
    pub fn taken(&self) -> usize {
        self.active + self.shared
    }

    /// Returns the number of experts here that the router scores.
    pub fn held(&self) -> usize {
        self.gate_up.len() - self.shared
    }
}

/// Space of a mixture of experts over `n` rows. The content of all of it is unspecified
/// afterwards. `T` are a device's activations.
#[derive(Debug)]
pub struct ExpertSpace<'a, T> {
    /// Gate and up projections, `[n·taken, 2·m]`, or `[n·taken, m]` without gates.
    pub gate_up: &'a mut T,
    /// Product of the activated gate and up, `[n·taken, m]`.
    pub activated: &'a mut T,
    /// Results of the experts, `[n·taken, out]`.
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

/// A norm of the residual stream.
#[derive(Debug)]
pub enum Norm<'a, V> {
    /// A root-mean-square norm.
    Rms(RmsNorm<'a, V>),
    /// A layer norm (Ba et al., arXiv:1607.06450): the mean is taken off, and a bias `[width]` is
    /// added.
    Layer {
        /// Weight, and epsilon added to the variance.
        norm: RmsNorm<'a, V>,
        /// `[width]`.
        bias: &'a V,
    },
}

impl<V> Norm<'_, V> {
    /// Returns the norm's weight.
    pub fn weight(&self) -> &V {
        match self {
            Self::Rms(norm) | Self::Layer { norm, .. } => norm.weight,
        }
    }
}

/// The end of a block: `residual += norm(delta)`, then `out = norm(residual)`. Both norms may be
/// missing: then the sum is added, or the residual stream is read, as it is.
#[derive(Debug)]
pub struct BlockEnd<'a, V> {
    /// Norm of the block's output.
    pub output: Option<RmsNorm<'a, V>>,
    /// Norm of the residual stream, for the next block.
    pub next: Option<Norm<'a, V>>,
}

/// The end of a block whose output is added as it is.
impl<'a, V> From<RmsNorm<'a, V>> for BlockEnd<'a, V> {
    fn from(next: RmsNorm<'a, V>) -> Self {
        Self {
            output: None,
            next: Some(Norm::Rms(next)),
        }
    }
}

impl<'a, V> BlockEnd<'a, V> {
    /// Returns the only norm, if it is a root-mean-square norm of the residual stream: the end
    /// that most models have.
    pub fn plain(&self) -> Option<RmsNorm<'a, V>> {
        match (self.output, self.next) {
            (None, Some(Norm::Rms(next))) => Some(next),
            _ => None,
        }
    }
}

/// Norms over all heads of queries together and all heads of keys together (OLMo 2, Walsh et
/// al., arXiv:2501.00656). Ranks have some heads each, and sum the squares of all.
#[derive(Debug)]
pub struct WholeNorms<'a, V> {
    /// Weights of this rank's query heads, `[heads·head_dim]`.
    pub queries: &'a V,
    /// Weights of this rank's key heads, `[kv_heads·head_dim]`.
    pub keys: &'a V,
    /// Columns of the queries, and of the keys, on all ranks together.
    pub widths: [usize; 2],
    /// Added to the mean square in both norms.
    pub eps: f32,
}

/// The key heads of a rank that count in a sum over all ranks, where several ranks, or one
/// several times, have copies of one head. The copy counts that serves the head's first query
/// head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedKeys {
    /// Number in the model of the rank's first query head.
    pub first: usize,
    /// Query heads that a key head of the rank serves.
    pub served: usize,
    /// Query heads that share a key head of the model.
    pub group: usize,
}

impl CountedKeys {
    /// Returns true if the rank's key head `head` counts.
    pub fn counts(&self, head: usize) -> bool {
        (self.first + head * self.served).is_multiple_of(self.group)
    }
}

/// Changes of logits on their way from the output head: each is divided, then bounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitScaling {
    /// Divisor.
    pub divisor: f32,
    /// Bound `c` of `c · tanh(x / c)`; `None` leaves logits unbounded.
    pub softcap: Option<f32>,
}

/// Parameters of an attention block between its projections. `M`, `V` and `R` are a device's
/// matrices, vectors and rotary angles.
#[derive(Debug)]
pub struct Attend<'a, M, V, R> {
    /// Heads of this rank.
    pub shape: &'a AttentionShape,
    /// Weight `[head_dim]` of the norm of each query head.
    pub q_norm: Option<&'a V>,
    /// Weight `[head_dim]` of the norm of each key head.
    pub k_norm: Option<&'a V>,
    /// Weight `[head_dim]` of the norm of each value head.
    pub v_norm: Option<&'a V>,
    /// Added to the mean square in these norms.
    pub eps: f32,
    /// Angles of every position.
    pub rope: &'a R,
    /// Sinks `[heads]` where [`AttentionShape::sinks`] says that there are some.
    pub sinks: Option<&'a V>,
    /// Weights of the product that reads the output, if one does. A device may fetch them
    /// meanwhile; no bit changes.
    pub next: Option<&'a M>,
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
impl<M, V> Clone for Experts<'_, M, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M, V> Copy for Experts<'_, M, V> {}
impl<V> Clone for RmsNorm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for RmsNorm<'_, V> {}
impl<V> Clone for Norm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for Norm<'_, V> {}
impl<V> Clone for BlockEnd<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for BlockEnd<'_, V> {}

//! Fixed factors of a model, beside its weights.

use serde::{Deserialize, Serialize};

/// Factors of the residual stream and of logits. Attention's is [`crate::AttentionSpec::scale`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Multipliers {
    /// Factor of the embedding, as the residual stream begins with it.
    pub embedding: f32,
    /// Factor of what each block adds to the residual stream.
    pub residual: f32,
    /// Divisor of logits.
    pub logits: f32,
    /// Bound of logits: `c · tanh(x / c)` of each divided logit `x`. `None` leaves them as they
    /// are.
    pub logit_softcap: Option<f32>,
}

/// Factors of a model that has none: all are one.
impl Default for Multipliers {
    fn default() -> Self {
        Self {
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logit_softcap: None,
        }
    }
}

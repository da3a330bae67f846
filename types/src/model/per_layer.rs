//! Per-layer embeddings: a table of tokens that has columns for each layer.

use serde::{Deserialize, Serialize};

use super::Activation;

/// Per-layer embeddings, as in Gemma 3n and Gemma 4's small models. Behind its MLP a layer adds to
/// the residual stream `x` a norm of `output(f(gate(x)) · p)`, with the activation `f`. A layer's
/// `p` is `(factor · row + norm(projection(e) / √hidden)) / √2`: `row` are its columns in the
/// table's row of the token, and `e` is the token's embedding as the residual stream begins with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PerLayerEmbeddings {
    /// Columns of each layer.
    pub width: usize,
    /// Rows of the table, at least as many as the model has tokens.
    pub rows: usize,
    /// Factor of the table's rows.
    pub factor: f32,
    /// Activation of the gate.
    pub activation: Activation,
}

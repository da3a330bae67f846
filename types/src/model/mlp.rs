//! The MLPs that a layer may have: their sizes, and the names of their tensors.

use serde::{Deserialize, Serialize};

/// Block of a layer that computes each position by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlp {
    /// `down(silu(gate(x)) · up(x))`.
    Gated(GatedMlpSpec),
}

/// Sizes of a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedMlpSpec {
    /// Columns between the projections.
    pub width: usize,
    /// True if all three projections have biases.
    pub bias: bool,
    /// Names of the tensors.
    pub names: GatedMlpNames,
}

/// Names of a gated MLP's tensors, as [`crate::TensorNames`] says. Gate and up of one name lie
/// in one tensor, the gate's rows first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedMlpNames {
    /// Projection that is activated.
    pub gate: String,
    /// Projection that is multiplied with the activated one.
    pub up: String,
    /// Projection to the residual stream.
    pub down: String,
}

/// Names of Llama, and of the families that are written as Llamas.
impl Default for GatedMlpNames {
    fn default() -> Self {
        let name = str::to_owned;
        Self {
            gate: name("mlp.gate_proj"),
            up: name("mlp.up_proj"),
            down: name("mlp.down_proj"),
        }
    }
}

impl Mlp {
    /// Returns the number of columns between the projections, which ranks divide.
    pub fn width(&self) -> usize {
        match self {
            Self::Gated(gated) => gated.width,
        }
    }

    /// Returns the number of rows of all the MLP's matrices. Their other side is the residual
    /// stream.
    pub fn rows(&self) -> usize {
        match self {
            Self::Gated(gated) => 3 * gated.width,
        }
    }
}

//! The MLPs that a layer may have: their sizes, and the names of their tensors.

use serde::{Deserialize, Serialize};

/// Block of a layer that computes each position by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlp {
    /// `down(f(gate(x)) · up(x))` with the activation `f`.
    Gated(GatedMlpSpec),
    /// `down(f(up(x)))` with the activation `f`.
    Plain(PlainMlpSpec),
    /// Mixture of experts: a sum over the few gated MLPs that a router chooses for a position.
    Experts(ExpertsSpec),
}

/// Activation between the projections of an MLP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// SiLU, `x · σ(x)`.
    #[default]
    Silu,
    /// GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv:1606.08415).
    GeluTanh,
}

/// Sizes of an MLP of two projections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlainMlpSpec {
    /// Columns between the projections.
    pub width: usize,
    /// Activation between the projections.
    pub activation: Activation,
    /// True if both projections have biases.
    pub bias: bool,
    /// Names of the tensors.
    pub names: PlainMlpNames,
}

/// Names of the tensors of an MLP of two projections, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainMlpNames {
    /// Projection that is activated.
    pub up: String,
    /// Projection to the residual stream.
    pub down: String,
}

/// Sizes of a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatedMlpSpec {
    /// Columns between the projections.
    pub width: usize,
    /// Activation of the gate.
    pub activation: Activation,
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

/// Sizes of a mixture of experts, each of which is a gated MLP without biases. A softmax over the
/// router's scores of all experts gives their weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a position goes through.
    pub active: usize,
    /// Columns between the projections of one expert.
    pub width: usize,
    /// True if the weights of a position's experts are divided by their sum.
    pub renormalized: bool,
    /// Names of the tensors.
    pub names: ExpertsNames,
}

/// Names of the tensors of a mixture of experts, as [`crate::TensorNames`] says. The tensors of
/// an expert stand below the experts' prefix and the expert's number: "mlp.experts.7.down_proj".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsNames {
    /// Router, with a row for each expert.
    pub router: String,
    /// Prefix of all experts.
    pub experts: String,
    /// Names below an expert's number.
    pub expert: GatedMlpNames,
}

impl Mlp {
    /// Returns the number of columns between the projections, which ranks divide.
    pub fn width(&self) -> usize {
        match self {
            Self::Gated(gated) => gated.width,
            Self::Plain(plain) => plain.width,
            Self::Experts(experts) => experts.width,
        }
    }

    /// Returns the number of rows of all the MLP's matrices. Their other side is the residual
    /// stream.
    pub fn rows(&self) -> usize {
        match self {
            Self::Gated(gated) => 3 * gated.width,
            Self::Plain(plain) => 2 * plain.width,
            Self::Experts(experts) => experts.count * (3 * experts.width + 1),
        }
    }

    /// Returns the number of rows that a position is multiplied with: [`Self::rows`] without those
    /// of experts that the position does not go through.
    pub fn active_rows(&self) -> usize {
        match self {
            Self::Gated(_) | Self::Plain(_) => self.rows(),
            Self::Experts(experts) => 3 * experts.active * experts.width + experts.count,
        }
    }
}

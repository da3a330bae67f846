//! The MLPs that a layer may have: their sizes, and the names of their tensors.

mod experts;

use serde::{Deserialize, Serialize};

pub use experts::{
    ExpertGate, ExpertGroups, ExpertTensors, ExpertsNames, ExpertsSpec, GroupWorth, RouterWeights,
    Routing, SharedExpert,
};

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
    /// A gated MLP and a mixture of experts side by side.
    Parallel(Box<ParallelMlpSpec>),
    /// None: the layer is a mixer alone.
    None,
}

/// A gated MLP and a mixture of experts side by side, whose outputs are normed and added (Gemma 4).
/// Both read norms of the residual stream; so does the router, whose norm is its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParallelMlpSpec {
    /// The gated MLP, which reads the layer's norm before its MLP.
    pub gated: GatedMlpSpec,
    /// The mixture of experts.
    pub experts: ExpertsSpec,
    /// Names of the tensors beside these two.
    pub names: ParallelMlpNames,
}

/// Names of the tensors beside a gated MLP and a mixture of experts, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParallelMlpNames {
    /// Norm of the gated MLP's output.
    pub gated_output_norm: String,
    /// Norm of the residual stream that experts read.
    pub experts_norm: String,
    /// Norm of the output of all experts.
    pub experts_output_norm: String,
    /// Weights of the norm that the router reads, over the root of the width: the whole name.
    pub router_scale: String,
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
    /// Squared ReLU, `max(x, 0)²` (So et al., arXiv:2109.08668).
    ReluSquared,
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
/// in one tensor, the gate's rows first. Experts without gates have none of that name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedMlpNames {
    /// Projection that is activated.
    pub gate: String,
    /// Projection that is multiplied with the activated one.
    pub up: String,
    /// Projection to the residual stream.
    pub down: String,
}

impl GatedMlpNames {
    /// Returns the usual names behind `prefix`, such as "mlp.shared_experts.".
    pub fn below(prefix: &str) -> Self {
        let name = |name: &str| format!("{prefix}{name}");
        Self {
            gate: name("gate_proj"),
            up: name("up_proj"),
            down: name("down_proj"),
        }
    }
}

/// Names of Llama, and of the families that are written as Llamas.
impl Default for GatedMlpNames {
    fn default() -> Self {
        Self::below("mlp.")
    }
}

impl Mlp {
    /// Returns the mixture of experts, if there is one.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Self::Gated(_) | Self::Plain(_) | Self::None => None,
            Self::Experts(experts) => Some(experts),
            Self::Parallel(both) => Some(&both.experts),
        }
    }

    /// Returns the mixture of experts, to change.
    pub fn experts_mut(&mut self) -> Option<&mut ExpertsSpec> {
        match self {
            Self::Gated(_) | Self::Plain(_) | Self::None => None,
            Self::Experts(experts) => Some(experts),
            Self::Parallel(both) => Some(&mut both.experts),
        }
    }

    /// Returns the number of columns between the projections, which ranks divide.
    pub fn width(&self) -> usize {
        match self {
            Self::Gated(gated) => gated.width,
            Self::Plain(plain) => plain.width,
            Self::Experts(experts) => experts.width,
            Self::Parallel(both) => both.gated.width,
            Self::None => 0,
        }
    }

    /// Returns the number of rows of all the MLP's matrices. Their other side is the residual
    /// stream.
    pub fn rows(&self) -> usize {
        match self {
            Self::Gated(gated) => 3 * gated.width,
            Self::Plain(plain) => 2 * plain.width,
            Self::Experts(experts) => experts.rows(experts.count),
            Self::Parallel(both) => 3 * both.gated.width + both.experts.rows(both.experts.count),
            Self::None => 0,
        }
    }

    /// Returns the number of rows that a position is multiplied with: [`Self::rows`] without those
    /// of experts that the position does not go through.
    pub fn active_rows(&self) -> usize {
        match self {
            Self::Gated(_) | Self::Plain(_) | Self::None => self.rows(),
            Self::Experts(experts) => experts.rows(experts.active),
            Self::Parallel(both) => 3 * both.gated.width + both.experts.rows(both.experts.active),
        }
    }
}

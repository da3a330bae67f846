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

/// Sizes of a mixture of experts, each of which is a gated MLP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertsSpec {
    /// Number of experts that the router chooses from.
    pub count: usize,
    /// Number of experts that the router chooses for a position.
    pub active: usize,
    /// Columns between the projections of one expert.
    pub width: usize,
    /// Function from the projections to these columns.
    pub gate: ExpertGate,
    /// Rule by which experts are chosen and weighed.
    pub routing: Routing,
    /// True if the router has a bias, which is a part of its scores.
    pub router_bias: bool,
    /// Full name of factors `[count]` of the experts' weights, after the rule; `None` if there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<String>,
    /// Expert that every position goes through; `None` if there is none.
    pub shared: Option<Box<SharedExpert>>,
    /// Names of the tensors.
    pub names: ExpertsNames,
}

/// Function from the gate and up projections of an expert to the columns behind them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertGate {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up`, with [`Activation::GeluTanh`].
    GeluTanh,
    /// gpt-oss's: `g · σ(alpha · g) · (u + 1)`, where `g` is the gate, at most `limit`, and `u` the
    /// up projection, between `-limit` and `limit`.
    Clamped {
        /// Bound of both projections, above zero.
        limit: f32,
        /// Factor inside of the logistic function.
        alpha: f32,
    },
    /// An activation of the up projection, without a gate: experts have no gate projections.
    Ungated(Activation),
}

impl ExpertGate {
    /// Returns the number of projections that an expert has before its function.
    pub fn projections(&self) -> usize {
        match self {
            Self::Silu | Self::GeluTanh | Self::Clamped { .. } => 2,
            Self::Ungated(_) => 1,
        }
    }
}

/// Rule by which a router chooses experts, and weighs their results.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// Function from the router's scores to weights.
    pub weights: RouterWeights,
    /// True if the weights of a position's experts are divided by their sum.
    pub renormalized: bool,
    /// Factor of the weights, after that.
    pub factor: f32,
    /// True if the experts are chosen by their weights plus a value for each expert, which is no
    /// part of the weight (Wang et al., arXiv:2408.15664).
    pub corrected: bool,
    /// Groups of experts, of which a position chooses some first; `None` if it chooses among all
    /// experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<ExpertGroups>,
}

/// Groups of neighbouring experts, equally many in each (DeepSeek-V2, arXiv:2405.04434). A position
/// chooses some groups, of equal ones the lower, and then experts of these groups alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups, at most [`Self::MOST`].
    pub count: usize,
    /// Number of groups that a position chooses.
    pub chosen: usize,
    /// Value by which groups are chosen.
    pub worth: GroupWorth,
}

impl ExpertGroups {
    /// Largest number of groups that is served.
    pub const MOST: usize = 64;
}

/// Value of a group of experts. Experts count as they do where experts are chosen: with their
/// corrections, if there are some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupWorth {
    /// The largest of its experts.
    Largest,
    /// The sum of its two largest experts.
    TwoLargest,
}

/// Function from a router's scores to weights of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterWeights {
    /// Softmax over the scores of all experts. With weights divided by their sum, this is the
    /// softmax over the chosen experts alone.
    Softmax,
    /// `σ(score)` of each expert by itself.
    Sigmoid,
}

impl Routing {
    /// Returns the rule of plain mixtures: weights by a softmax.
    pub fn softmax(renormalized: bool) -> Self {
        Self {
            weights: RouterWeights::Softmax,
            renormalized,
            factor: 1.0,
            corrected: false,
            groups: None,
        }
    }
}

/// A gated MLP beside the experts that a router chooses from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Columns between its projections. Without a gate they are a multiple of those of one expert.
    pub width: usize,
    /// Name of a row of the width of the residual stream, by which its result is weighed:
    /// `σ(row · x)`. `None` weighs it one.
    pub gate: Option<String>,
    /// Names of its tensors.
    pub names: GatedMlpNames,
}

/// Names of the tensors of a mixture of experts, as [`crate::TensorNames`] says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsNames {
    /// Router, with a row for each expert.
    pub router: String,
    /// Full name, without ".weight", of the values by which choices are corrected; not read where
    /// [`Routing::corrected`] is false.
    pub correction: String,
    /// Names of the experts.
    pub experts: ExpertTensors,
}

impl ExpertsNames {
    /// Returns the names of families whose experts replace the gated MLP of a Llama: Qwen, GLM.
    pub fn of_mlp() -> Self {
        Self {
            router: "mlp.gate".to_owned(),
            correction: "mlp.gate.e_score_correction_bias".to_owned(),
            experts: ExpertTensors::Single {
                prefix: "mlp.experts".to_owned(),
                expert: GatedMlpNames::below(""),
            },
        }
    }

    /// Returns the names of Mixtral, and of families that are written as Mixtrals.
    pub fn of_sparse_block() -> Self {
        let [gate, up, down] = ["w1", "w3", "w2"].map(str::to_owned);
        Self {
            router: "block_sparse_moe.gate".to_owned(),
            correction: "block_sparse_moe.e_score_correction_bias".to_owned(),
            experts: ExpertTensors::Single {
                prefix: "block_sparse_moe.experts".to_owned(),
                expert: GatedMlpNames { gate, up, down },
            },
        }
    }
}

/// Forms in which files hold the matrices of experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertTensors {
    /// Each expert's tensors stand below a prefix and the expert's number:
    /// "mlp.experts.7.down_proj".
    Single {
        /// Prefix of all experts.
        prefix: String,
        /// Names below an expert's number.
        expert: GatedMlpNames,
    },
    /// Two tensors hold the matrices of all experts, one behind the other.
    Stacked {
        /// Gates and ups, `[experts, 2·width, hidden]`, the gate's rows first.
        gate_up: String,
        /// Projections to the residual stream, `[experts, hidden, width]`.
        down: String,
    },
    /// Two tensors hold the matrices of all experts, one behind the other, with a gate's row and
    /// an up's row in turn. Floats lie turned around, with inputs before outputs. MXFP4 lies
    /// otherwise, with outputs before inputs, in two tensors for each name: `_blocks` and
    /// `_scales`.
    Interleaved {
        /// Gates and ups, `[experts, hidden, 2·width]`.
        gate_up: String,
        /// Projections to the residual stream, `[experts, width, hidden]`.
        down: String,
        /// True if both have biases, whose names end in `_bias`.
        bias: bool,
    },
}

impl ExpertsSpec {
    /// Returns the number of experts of [`Self::width`] that the shared expert is made of. Its
    /// columns are divided among them: their results add up to its result. A shared expert with a
    /// gate is made of none: it is a gated MLP of its own.
    pub fn shared_count(&self) -> usize {
        let shared = self.shared.as_ref().filter(|shared| shared.gate.is_none());
        shared.map_or(0, |shared| shared.width / self.width)
    }

    /// Returns the rows of the shared expert's matrices, and of its gate.
    fn shared_rows(&self) -> usize {
        let matrices = self.gate.projections() + 1;
        let rows =
            |shared: &SharedExpert| matrices * shared.width + usize::from(shared.gate.is_some());
        self.shared.as_deref().map_or(0, rows)
    }

    /// Returns the rows of the router, of the shared expert, and of `experts` experts.
    fn rows(&self, experts: usize) -> usize {
        let matrices = self.gate.projections() + 1;
        matrices * experts * self.width + self.count + self.shared_rows()
    }

    /// Returns the number of all experts, with those of the shared one.
    pub fn total(&self) -> usize {
        self.count + self.shared_count()
    }

    /// Returns the number of experts that a position goes through, with those of the shared one.
    pub fn taken(&self) -> usize {
        self.active + self.shared_count()
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

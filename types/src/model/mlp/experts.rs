//! Mixtures of experts: how a router chooses, and what experts compute.

use serde::{Deserialize, Serialize};

use super::{Activation, GatedMlpNames};

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
    pub(super) fn shared_rows(&self) -> usize {
        let matrices = self.gate.projections() + 1;
        let rows =
            |shared: &SharedExpert| matrices * shared.width + usize::from(shared.gate.is_some());
        self.shared.as_deref().map_or(0, rows)
    }

    /// Returns the rows of the router, of the shared expert, and of `experts` experts.
    pub(super) fn rows(&self, experts: usize) -> usize {
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

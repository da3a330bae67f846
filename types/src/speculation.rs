//! Configuration of speculative decoding, and the interface of an algorithm to configuration.

use std::{fmt, path::Path, sync::Arc};

use lockstep_adaptive::{AdaptiveConfig, Policies};
use serde::{Deserialize, Serialize};

use crate::{ConfigError, ModelConfig, ReserveConfig};

pub use draft::{DflashSpec, DraftKind, DraftKv, DraftModel, Eagle3Norms, NextnNames};
pub use options::{NumberOption, OptionSpec, OptionValue, OptionValues, SwitchOption};

mod draft;
mod options;
#[cfg(feature = "testing")]
mod testing;

/// Speculative decoding, resolved. Every size that depends on speculation comes from here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeculationConfig {
    /// The registered name of the algorithm; `None` = no speculation.
    pub algorithm: Option<String>,
    /// The draft model; `None` if the algorithm drafts without one.
    pub draft: Option<DraftModel>,
    /// KV that drafting keeps per cached token.
    pub draft_kv: DraftKv,
    /// Draft steps: the depth of a chain or tree, the largest over all tiers. 0
    /// without speculation.
    pub num_steps: usize,
    /// Branches per node; 1 = a chain.
    pub topk: usize,
    /// Tokens of one request in a verification, its last known token included:
    /// `num_steps + 1` for chains. 0 without speculation.
    pub num_draft_tokens: usize,
    /// Method of verification.
    pub verification: Verification,
    /// `num_draft_tokens`, the largest over all tiers; 0 without speculation.
    /// KV reserve, table width, context check and buffers are sized by it.
    pub max_speculative_num_draft_tokens: usize,
    /// [`Capabilities::drafts_from_texts`] of the algorithm.
    pub drafts_from_texts: bool,
    /// Values of the options that the algorithm declares for itself.
    pub options: OptionValues,
    /// Adaptive depth; `None` = the depth is always [`Self::num_steps`].
    pub adaptive: Option<AdaptiveConfig>,
    /// [`Algorithm::pause_window`] where the depth adapts. 0 = the drafter takes in every
    /// step's tokens at once, even in steps that draft nothing.
    pub pause_window: usize,
}

/// Method by which drafted tokens are verified. All methods are lossless in law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// The target's token is sampled as without speculation. A drafted token is accepted if it
    /// is the same token, so the text at a seed is the same with speculation and without.
    #[default]
    Target,
    /// Drafts are sampled and accepted with probability `min(1, p / q)`
    /// (Leviathan et al., arXiv:2211.17192); in trees recursively (Miao et al.,
    /// arXiv:2305.09781; Jeon et al., arXiv:2402.14160).
    Rejection,
    /// A chain is accepted as a block (Sun et al., arXiv:2403.10444).
    Block,
}

/// Abilities of an algorithm. Code asks for these, never for the algorithm's name. The default
/// is an algorithm without any: chains of a fixed depth, and no draft model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the algorithm drafts with a model, in a folder of its own or in the target's.
    pub needs_draft_model: bool,
    /// True if that model lies in the target's folder. Then no other folder is named, and its
    /// weights are exchanged with the target's.
    pub draft_in_target: bool,
    /// KV that drafting keeps per cached token.
    pub draft_kv: DraftKv,
    /// True if the algorithm can propose trees.
    pub supports_tree: bool,
    /// True if the algorithm runs passes of several tokens per request on the draft model, as a
    /// verification does.
    pub supports_target_verify_for_draft: bool,
    /// True if the algorithm can sample its drafts and tell their probabilities.
    /// [`Verification::Rejection`] and [`Verification::Block`] need that.
    pub draft_probabilities: bool,
    /// True if the drafter's passes read the target's hidden states.
    pub carries_hidden_states: bool,
    /// True if the depth may change from step to step.
    pub adaptive: bool,
    /// True if operators may add and remove texts to draft from while the server runs:
    /// [`DrafterCommand::Corpora`](crate::drafter::DrafterCommand::Corpora).
    pub drafts_from_texts: bool,
}

/// Steps, branches and verified tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftShape {
    /// Draft steps.
    pub num_steps: usize,
    /// Branches per node.
    pub topk: usize,
    /// Tokens in a verification, the last known one included.
    pub num_draft_tokens: usize,
}

impl DraftShape {
    /// Returns the shape of a chain of `num_steps` steps.
    pub fn chain(num_steps: usize) -> Self {
        Self {
            num_steps,
            topk: 1,
            num_draft_tokens: num_steps + 1,
        }
    }

    /// Returns the most tokens of a shape with `num_steps` steps and `topk` branches. The first
    /// step drafts `topk` nodes. Each later step drafts `topk` nodes after each of the `topk`
    /// likeliest of the step before.
    pub fn most_tokens(num_steps: usize, topk: usize) -> usize {
        match num_steps {
            0 => 1,
            steps => 1 + topk + (steps - 1) * topk * topk,
        }
    }

    /// Returns the tokens of one request in a verification `depth` steps deep. A chain has the
    /// last known token and one token for each step. A tree of fewer steps has its share of the
    /// nodes, so that a shallower step is less work.
    pub fn draft_tokens_at(&self, depth: usize) -> usize {
        let (steps, nodes) = (self.num_steps, self.num_draft_tokens.saturating_sub(1));
        match depth {
            _ if depth >= steps => self.num_draft_tokens,
            0 => 1,
            _ => (1 + (nodes * depth).div_ceil(steps).max(depth))
                .min(Self::most_tokens(depth, self.topk)),
        }
    }
}

/// Interface of a speculative algorithm to configuration. The device's side is registered
/// beside it in the worker.
pub trait Algorithm: fmt::Debug + Send + Sync {
    /// Name in `--speculative-algorithm`, in capitals.
    fn name(&self) -> &str;
    /// One sentence for people that says what the algorithm drafts with.
    fn summary(&self) -> &str;
    /// Abilities of the algorithm.
    fn capabilities(&self) -> Capabilities;
    /// Returns the shape for options that are not given.
    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: 3,
            topk: 1,
            num_draft_tokens: 4,
        }
    }
    /// Returns the shape for options that are not given, with the draft model that was read.
    fn default_shape_with(&self, draft: &DraftModel) -> DraftShape {
        let _ = draft;
        self.default_shape()
    }
    /// Reads the draft model; `path` is `--speculative-draft-model-path`. An algorithm without
    /// [`Capabilities::needs_draft_model`] reads none. One with
    /// [`Capabilities::draft_in_target`] gets the target's folder or no path.
    ///
    /// # Errors
    /// [`ConfigError`] when the folder is missing, damaged or does not fit.
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let _ = (path, target);
        Ok(None)
    }
    /// Checks rules that only this algorithm has.
    ///
    /// # Errors
    /// [`ConfigError`] naming the options and the remedy.
    fn validate(
        &self,
        speculation: &SpeculationConfig,
        target: &ModelConfig,
    ) -> Result<(), ConfigError> {
        let _ = (speculation, target);
        Ok(())
    }
    /// Returns the tokens of one request in a verify-shaped pass of the target, or of the draft
    /// model if `is_draft`.
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        let _ = is_draft;
        draft_tokens
    }
    /// Options of this algorithm alone: each becomes a flag of the program. Their values are in
    /// [`SpeculationConfig::options`]. With another algorithm they are an error.
    fn options(&self) -> &[OptionSpec] {
        &[]
    }
    /// Clause that says why an algorithm without these options refuses them: "it looks no texts
    /// up".
    fn why_others_refuse_options(&self) -> &str {
        "it has no such option"
    }
    /// Checks the given options against each other, before their ranges are checked. Sets those
    /// options whose default depends on another option. All others get their defaults
    /// afterwards.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] naming the options that do not go together.
    fn complete_options(&self, given: &mut OptionValues) -> Result<(), ConfigError> {
        let _ = given;
        Ok(())
    }
    /// Number of a request's last positions that its drafter can take in late, if they were
    /// computed in steps without drafts. In such steps the drafter does nearly nothing.
    /// Example: with 64, a request that ran for 200 positions without drafts drafts again as if
    /// its text began with the first page of its last 64. 0 = the drafter takes in every step
    /// at once.
    fn pause_window(&self) -> usize {
        0
    }
    /// Returns the bytes that the algorithm takes on a rank that drafts. Weights, keys, values
    /// and activations of a draft model are counted elsewhere.
    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        let _ = speculation;
        0
    }
    /// Returns the largest `num_draft_tokens` over all depths and modes of the algorithm.
    fn max_draft_tokens(&self, speculation: &SpeculationConfig) -> usize {
        self.tokens_per_request_for_verify(speculation.num_draft_tokens, false)
    }
}

/// Algorithms that a program knows, and the policies by which their depth may adapt.
#[derive(Debug, Clone, Default)]
pub struct Algorithms {
    known: Vec<Arc<dyn Algorithm>>,
    policies: Policies,
}

impl Algorithms {
    /// Makes a list without algorithms, with these policies.
    pub fn with_policies(policies: Policies) -> Self {
        Self {
            known: Vec::new(),
            policies,
        }
    }

    /// Adds an algorithm, in place of an earlier one of the same name.
    pub fn add(&mut self, algorithm: Arc<dyn Algorithm>) {
        self.known.retain(|known| known.name() != algorithm.name());
        self.known.push(algorithm);
    }

    /// Returns the algorithm of that name, in whatever case.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Algorithm>> {
        self.known
            .iter()
            .find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// Returns all algorithms, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Algorithm>> {
        self.known.iter()
    }

    /// Returns the policies by which the depth may adapt.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }
}

impl SpeculationConfig {
    /// Returns the config of a server whose longest text has `served` tokens.
    #[must_use]
    pub fn serving(mut self, served: usize) -> Self {
        self.draft = self.draft.map(|draft| DraftModel {
            model: draft.model.serving(served),
            ..draft
        });
        self
    }

    /// Returns the configuration without speculation.
    pub fn none() -> Self {
        Self {
            algorithm: None,
            draft: None,
            draft_kv: DraftKv::None,
            num_steps: 0,
            topk: 1,
            num_draft_tokens: 0,
            verification: Verification::Target,
            max_speculative_num_draft_tokens: 0,
            drafts_from_texts: false,
            options: OptionValues::default(),
            adaptive: None,
            pause_window: 0,
        }
    }

    /// Returns true if there is an algorithm that drafts.
    pub fn enabled(&self) -> bool {
        self.algorithm.is_some()
    }

    /// Draft steps of the first plans, and of all where the depth does not adapt.
    pub fn initial_depth(&self) -> u32 {
        match &self.adaptive {
            Some(adaptive) => adaptive.initial_depth,
            None => u32::try_from(self.num_steps).unwrap_or(u32::MAX),
        }
    }

    /// [`DraftShape::draft_tokens_at`] of the largest shape.
    pub fn draft_tokens_at(&self, depth: usize) -> usize {
        let shape = DraftShape {
            num_steps: self.num_steps,
            topk: self.topk,
            num_draft_tokens: self.num_draft_tokens,
        };
        shape.draft_tokens_at(depth)
    }

    /// Returns the largest shape that a decode step may write and commit. Every size that
    /// depends on the shape is taken from here. Numbers beyond its range are refused when the
    /// options are read.
    pub fn reserve(&self) -> ReserveConfig {
        if !self.enabled() {
            return ReserveConfig::none();
        }
        let to_u32 = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        ReserveConfig {
            steps: to_u32(self.num_steps),
            topk: to_u32(self.topk),
            draft_tokens: to_u32(self.max_speculative_num_draft_tokens),
        }
    }

    /// Returns the number of a request's last positions whose features a drafter keeps in steps
    /// without drafts: [`Self::pause_window`], and the positions that the planner lets it be
    /// behind besides. 0 = it takes in every step's positions at once.
    pub fn kept_positions(&self) -> usize {
        let left = match self.draft_kv {
            DraftKv::Tokens => self.reserve().left_by_draft_model() as usize,
            DraftKv::None | DraftKv::Pairs => 0,
        };
        match self.pause_window {
            0 => 0,
            window => window + left,
        }
    }

    /// Returns the most tokens that one step commits for one request: the longest path and the
    /// token after it.
    pub fn max_commit(&self) -> usize {
        self.reserve().max_commit_per_decode() as usize
    }
}

impl Verification {
    /// Name of the method as an option's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Rejection => "rejection",
            Self::Block => "block",
        }
    }
}

#[cfg(test)]
mod tests;

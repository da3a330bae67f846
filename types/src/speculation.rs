//! Speculative decoding as it is configured, and what an algorithm says of itself.

use std::{fmt, path::Path, sync::Arc};

use lockstep_adaptive::{AdaptiveConfig, Policies};
use serde::{Deserialize, Serialize};

use crate::{ConfigError, ModelConfig, ReserveConfig};

pub use options::{NumberOption, OptionSpec, OptionValue, OptionValues, SwitchOption};

mod options;
#[cfg(feature = "testing")]
mod testing;

/// Speculative decoding, resolved. Every size that depends on it comes from here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeculationConfig {
    /// The registered name of the algorithm; `None` = no speculation.
    pub algorithm: Option<String>,
    /// What it drafts with, where that is a model of its own.
    pub draft: Option<DraftModel>,
    /// What drafting keeps per cached token.
    pub draft_kv: DraftKv,
    /// Draft steps: the depth of a chain or tree, the largest over all tiers. 0
    /// without speculation.
    pub num_steps: usize,
    /// Branches per node; 1 = a chain.
    pub topk: usize,
    /// Tokens of one request in a verification, its last known token included:
    /// `num_steps + 1` for chains. 0 without speculation.
    pub num_draft_tokens: usize,
    /// How drafted tokens are verified.
    pub verification: Verification,
    /// `num_draft_tokens`, the largest over all tiers; 0 without speculation.
    /// KV reserve, table width, context check and buffers are sized by it.
    pub max_speculative_num_draft_tokens: usize,
    /// [`Capabilities::drafts_from_texts`] of the algorithm.
    pub drafts_from_texts: bool,
    /// Values of the options that the algorithm declares for itself.
    pub options: OptionValues,
    /// How the depth adapts; `None` = it is [`Self::num_steps`] always.
    pub adaptive: Option<AdaptiveConfig>,
    /// [`Algorithm::pause_window`] where the depth adapts. 0 = the drafter takes
    /// every step's tokens in at once, also of steps that draft nothing.
    pub pause_window: usize,
}

/// A draft model or head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftModel {
    /// Its layers, as of a model; `vocab_size` is the target's.
    pub model: ModelConfig,
    /// What kind it is.
    pub kind: DraftKind,
    /// It has an embedding of its own, and does not read the target's.
    pub own_embedding: bool,
    /// It has an output head of its own, and does not read the target's.
    pub own_head: bool,
}

/// Kinds of draft models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum DraftKind {
    /// A whole model with the target's tokenizer.
    Model,
    /// An EAGLE-1/2 head: the target's last hidden state and the next token's
    /// embedding through `fc` into one layer (Li et al., arXiv:2401.15077).
    Eagle,
    /// An EAGLE-3 head: hidden states of three layers (Li et al., arXiv:2503.01840).
    Eagle3 {
        /// Rows of its output head.
        draft_vocab_size: usize,
        /// The target's layers whose input is captured, ascending.
        capture_layers: Vec<usize>,
    },
}

/// What drafting keeps per cached token, which decides over prefix keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DraftKv {
    /// Nothing.
    #[default]
    None,
    /// Keys and values that depend on the tokens up to their own: a draft model.
    Tokens,
    /// Keys and values that depend on the next token too: EAGLE's heads. Prefix
    /// keys are pairs of tokens.
    Pairs,
}

/// How drafted tokens are verified. All are lossless in law.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// The target's token is sampled as without speculation, and a drafted token
    /// is accepted when it is that one: the text at a seed is the same with
    /// speculation and without.
    #[default]
    Target,
    /// Drafts are sampled and accepted with probability `min(1, p / q)`
    /// (Leviathan et al., arXiv:2211.17192); in trees recursively (Miao et al.,
    /// arXiv:2305.09781; Jeon et al., arXiv:2402.14160).
    Rejection,
    /// A chain is accepted as a block (Sun et al., arXiv:2403.10444).
    Block,
}

/// What an algorithm can do, asked instead of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It drafts with a model in a folder of its own.
    pub needs_draft_model: bool,
    /// What drafting keeps per cached token.
    pub draft_kv: DraftKv,
    /// It can propose trees.
    pub supports_tree: bool,
    /// It runs passes of several tokens per request, like a verification, on
    /// the draft model.
    pub supports_target_verify_for_draft: bool,
    /// It can sample its drafts and tell their probabilities, which
    /// [`Verification::Rejection`] and [`Verification::Block`] need.
    pub draft_probabilities: bool,
    /// Its passes read the target's hidden states.
    pub carries_hidden_states: bool,
    /// Its depth may change from step to step.
    pub adaptive: bool,
    /// Operators may give it texts to draft from, and take them away, while it
    /// serves: [`DrafterCommand::Corpora`](crate::drafter::DrafterCommand::Corpora).
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
    /// The most tokens that a shape of so many steps and branches has: the first
    /// step drafts `topk` nodes, each later one `topk` after each of the `topk`
    /// likeliest of the step before.
    pub fn most_tokens(num_steps: usize, topk: usize) -> usize {
        match num_steps {
            0 => 1,
            steps => 1 + topk + (steps - 1) * topk * topk,
        }
    }

    /// Tokens of one request in a verification `depth` steps deep. A chain has a
    /// token for each step and the last known one before them; a tree of fewer
    /// steps has its share of nodes, so that a step less is less work.
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

/// A speculative algorithm as configuration sees it. The device's side is
/// registered beside it in the worker.
pub trait Algorithm: fmt::Debug + Send + Sync {
    /// What `--speculative-algorithm` calls it, in capitals.
    fn name(&self) -> &str;
    /// One sentence for people: what it drafts with.
    fn summary(&self) -> &str;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// The shape where the options leave it open.
    fn default_shape(&self) -> DraftShape {
        DraftShape {
            num_steps: 3,
            topk: 1,
            num_draft_tokens: 4,
        }
    }
    /// Reads what it drafts with; `path` is `--speculative-draft-model-path`.
    ///
    /// # Errors
    /// [`ConfigError`] when the folder is missing, damaged or does not fit.
    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError>;
    /// Checks what the general rules can't know.
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
    /// Tokens of one request in a verify-shaped pass of the target, or of the
    /// draft model.
    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        let _ = is_draft;
        draft_tokens
    }
    /// Options of its own: each becomes a flag of the program. Their values are
    /// in [`SpeculationConfig::options`]; with another algorithm they are an error.
    fn options(&self) -> &[OptionSpec] {
        &[]
    }
    /// Why an algorithm without these options refuses them, as a clause: "it
    /// looks no texts up".
    fn why_others_refuse_options(&self) -> &str {
        "it has no such option"
    }
    /// Checks options that were given against each other, before their ranges,
    /// and sets those whose default depends on another one. All others get their
    /// defaults afterwards.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] naming the options that do not go together.
    fn complete_options(&self, given: &mut OptionValues) -> Result<(), ConfigError> {
        let _ = given;
        Ok(())
    }
    /// Positions of a request that its drafter can take in late: those computed in steps
    /// that draft nothing, in which it then does nearly nothing. With 64, a request that
    /// went on for 200 positions without drafts drafts again as if its text began with the
    /// first page of its last 64. 0 = the drafter takes in every step at once.
    fn pause_window(&self) -> usize {
        0
    }
    /// Bytes that it takes on a rank that drafts beside the weights, keys,
    /// values and activations of a draft model, which are counted for it.
    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        let _ = speculation;
        0
    }
    /// The largest `num_draft_tokens` over everything it may do.
    fn max_draft_tokens(&self, speculation: &SpeculationConfig) -> usize {
        self.tokens_per_request_for_verify(speculation.num_draft_tokens, false)
    }
}

/// The algorithms a program knows, and the policies by which their depth may
/// adapt.
#[derive(Debug, Clone, Default)]
pub struct Algorithms {
    known: Vec<Arc<dyn Algorithm>>,
    policies: Policies,
}

impl Algorithms {
    /// No algorithm, and these policies.
    pub fn with_policies(policies: Policies) -> Self {
        Self {
            known: Vec::new(),
            policies,
        }
    }

    /// Adds one; a later one of the same name takes the earlier one's place.
    pub fn add(&mut self, algorithm: Arc<dyn Algorithm>) {
        self.known.retain(|known| known.name() != algorithm.name());
        self.known.push(algorithm);
    }

    /// The one of that name, in whatever case.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Algorithm>> {
        self.known
            .iter()
            .find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// All of them, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Algorithm>> {
        self.known.iter()
    }

    /// By what the depth may adapt.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }
}

impl SpeculationConfig {
    /// No speculation.
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

    /// Whether anything is drafted.
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

    /// What a decode step may write and commit; all that is sized by it asks
    /// this. Numbers beyond its range are refused when the options are read.
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

    /// The most tokens that one step commits for one request: the longest path
    /// and the token after it.
    pub fn max_commit(&self) -> usize {
        self.reserve().max_commit_per_decode() as usize
    }
}

impl Verification {
    /// Its name as an option's value.
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

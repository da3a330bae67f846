use std::path::PathBuf;

use clap::builder::BoolishValueParser;

use super::{
    algorithm::{AlgorithmArgs, HEADING},
    positive,
};

/// How drafted tokens can be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum VerificationArg {
    /// Accept a draft where the target would have chosen the same token: texts
    /// at a seed are those without speculation.
    Target,
    /// Accept a draft with probability min(1, p/q): texts are as likely as
    /// without speculation, and above temperature 0 more drafts are accepted.
    Rejection,
    /// As rejection, over a whole chain at once.
    Block,
}

/// Drafting tokens cheaply and verifying several of them in one pass.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SpeculationArgs {
    /// What drafts tokens for the model to verify, several in one pass
    /// [default: none; demo model: EAGLE3].
    ///
    /// EAGLE3 and EAGLE use a small head trained for the model, NEXTN a layer
    /// of the model's own that drafts, DFLASH a small model trained for it that
    /// fills a whole block of tokens in one pass, STANDALONE a smaller model with the same tokenizer, NGRAM the texts seen
    /// so far.
    /// JUMP_FORWARD drafts only text that a request's constraint forces, which
    /// all others draft too. `none` turns drafting off. Whatever is drafted,
    /// the text stays the model's own.
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_ALGORITHM", value_name = "NAME",
          help_heading = HEADING)]
    pub speculative_algorithm: Option<String>,
    /// The draft head or model: its folder with config.json and safetensors, or its name on the
    /// Hugging Face Hub.
    #[arg(long, aliases = ["draft-model", "speculative-draft-model"],
          env = "LOCKSTEP_SPECULATIVE_DRAFT_MODEL_PATH", value_name = "MODEL",
          help_heading = HEADING)]
    pub speculative_draft_model_path: Option<PathBuf>,
    /// Branch, tag or commit of a draft that is named [default: main].
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_DRAFT_MODEL_REVISION", value_name = "REVISION",
          help_heading = HEADING)]
    pub speculative_draft_model_revision: Option<String>,
    /// Draft steps: how many tokens deep a chain or tree is, at most 64
    /// [default: the algorithm's, mostly 3].
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_NUM_STEPS", value_name = "STEPS",
          value_parser = positive, help_heading = HEADING)]
    pub speculative_num_steps: Option<usize>,
    /// Branches of each drafted token, at most 64; 1 = a chain [default: the
    /// algorithm's, mostly 1].
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_EAGLE_TOPK", value_name = "BRANCHES",
          value_parser = positive, help_heading = HEADING)]
    pub speculative_eagle_topk: Option<usize>,
    /// Tokens of a request in one verification, its last known token included,
    /// at most 512 [default: chains: steps + 1; trees: 1 + steps × branches].
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_NUM_DRAFT_TOKENS", value_name = "TOKENS",
          value_parser = positive, help_heading = HEADING)]
    pub speculative_num_draft_tokens: Option<usize>,
    /// How drafts are verified above temperature 0 [default: target].
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_VERIFICATION", value_name = "MODE",
          help_heading = HEADING)]
    pub speculative_verification: Option<VerificationArg>,
    /// Change the depth from step to step with what is accepted and how much
    /// runs, on all ranks alike [default: false; with --enable-dp-attention true
    /// where the algorithm can].
    ///
    /// --speculative-num-steps is then the depth of the first steps, and
    /// --speculative-num-draft-tokens belongs to it. What is allocated is
    /// enough for the deepest.
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_ADAPTIVE", value_name = "true|false",
          value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true,
          default_missing_value = "true", hide_possible_values = true,
          help_heading = HEADING)]
    pub speculative_adaptive: Option<bool>,
    /// JSON file that says how the depth adapts, as for SGLang [default: strategy
    /// goodput, depths 0, 1, 2, 3, 5, 7 up to the larger of the algorithm's and
    /// --speculative-num-steps].
    ///
    /// {"strategy": "ema", "1": {"candidate_steps": [1, 3, 7]}} lets SGLang's
    /// moving average choose among three depths; docs/adaptive.md has all keys.
    #[arg(long, env = "LOCKSTEP_SPECULATIVE_ADAPTIVE_CONFIG", value_name = "FILE",
          help_heading = HEADING)]
    pub speculative_adaptive_config: Option<PathBuf>,
    /// Options that algorithms declare for themselves.
    #[command(flatten)]
    pub algorithm: AlgorithmArgs,
}

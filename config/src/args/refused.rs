use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use lockstep_types::ConfigError;

/// Options of SGLang and vLLM that people will try and that this version does
/// not have. They are known so that the error can say what to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedArgs {
    /// The first one that was given, and the remedy.
    given: Option<(&'static str, &'static str)>,
}

/// One of them.
struct Refused {
    /// Its name and other spellings.
    names: &'static [&'static str],
    /// Values that say what is done anyway; `None` for a switch.
    passes: Option<&'static [&'static str]>,
    remedy: &'static str,
}

const LOSSLESS: &str =
    "leave it out; verification never changes the law of the text, see --speculative-verification";
const DRAFT_AS_TARGET: &str = "leave it out; drafts are loaded, computed and cached as \
                               --load-format, --dtype, --quantization and --kv-cache-dtype say";
const BREADTH: &str = "use --speculative-eagle-topk, the branches of each drafted token";
const REPLICAS: &str = "use --tp-size, or run one server per replica behind a gateway";
const EXPERTS: &str = "experts are not served; use a dense model";
const LORA: &str = "merge the adapter into the model's weights and serve that";
const TOOLS: &str = "leave it out; answers are plain text, to be parsed by the client";
const MEMORY: &str = "use --mem-fraction-static, the share of the memory for weights and cache";

const fn valued(names: &'static [&'static str], remedy: &'static str) -> Refused {
    passing(names, &[], remedy)
}

const fn passing(
    names: &'static [&'static str],
    passes: &'static [&'static str],
    remedy: &'static str,
) -> Refused {
    Refused {
        names,
        passes: Some(passes),
        remedy,
    }
}

const fn switch(names: &'static [&'static str], remedy: &'static str) -> Refused {
    Refused {
        names,
        passes: None,
        remedy,
    }
}

const TABLE: &[Refused] = &[
    valued(&["speculative-accept-threshold-single"], LOSSLESS),
    valued(&["speculative-accept-threshold-acc"], LOSSLESS),
    switch(
        &["speculative-use-rejection-sampling"],
        "use --speculative-verification rejection",
    ),
    switch(
        &["speculative-use-block-verification"],
        "use --speculative-verification block",
    ),
    valued(
        &["speculative-token-map"],
        "leave it out; a head brings its own map of tokens",
    ),
    valued(&["speculative-draft-load-format"], DRAFT_AS_TARGET),
    valued(&["speculative-draft-model-quantization"], DRAFT_AS_TARGET),
    valued(&["speculative-draft-kv-cache-dtype"], DRAFT_AS_TARGET),
    valued(
        &["speculative-attention-mode"],
        "leave it out; there is one kind of pass",
    ),
    valued(&["speculative-ngram-min-bfs-breadth"], BREADTH),
    valued(&["speculative-ngram-max-bfs-breadth"], BREADTH),
    valued(
        &["speculative-ngram-match-type"],
        "leave it out; the likeliest continuations are drafted",
    ),
    valued(
        &[
            "speculative-ngram-max-trie-depth",
            "speculative-ngram-branch-length",
        ],
        "use --speculative-ngram-max-match-window-size and --speculative-num-steps",
    ),
    valued(
        &["speculative-config"],
        "use --speculative-algorithm, --speculative-draft-model-path and --speculative-num-steps",
    ),
    passing(
        &["pp-size", "pp", "pipeline-parallel-size"],
        &["1"],
        REPLICAS,
    ),
    passing(&["ep-size", "ep", "expert-parallel-size"], &["1"], EXPERTS),
    switch(
        &["trust-remote-code"],
        "code from a model folder is never run",
    ),
    valued(&["gpu-memory-utilization"], MEMORY),
    switch(&["enable-lora"], LORA),
    valued(&["lora-paths"], LORA),
    valued(&["tool-call-parser"], TOOLS),
    valued(&["reasoning-parser"], TOOLS),
    passing(
        &["grammar-backend"],
        &["none"],
        "leave it out; output is not constrained by a grammar",
    ),
    switch(
        &["is-embedding"],
        "embeddings are not served; use a model that generates text",
    ),
    valued(
        &["chat-template"],
        "put the template into the model folder as chat_template.jinja",
    ),
];

impl RefusedArgs {
    /// The error for the first refused option that was given. A parallel size
    /// of 1 and the like say what is done anyway and pass.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self.given {
            Some((option, remedy)) => Err(ConfigError::Unsupported { option, remedy }),
            None => Ok(()),
        }
    }
}

impl Refused {
    fn argument(&self) -> Option<Arg> {
        let (name, others) = self.names.split_first()?;
        let argument = Arg::new(*name)
            .long(*name)
            .aliases(others.iter().copied())
            .hide(true);
        Some(match self.passes {
            // With any number of values, also none: the remedy is the error.
            Some(_) => argument
                .action(ArgAction::Append)
                .num_args(0..)
                .allow_hyphen_values(false),
            None => argument.action(ArgAction::SetTrue),
        })
    }

    fn refuses(&self, matches: &ArgMatches) -> bool {
        let Some(name) = self.names.first() else {
            return false;
        };
        match self.passes {
            None => matches.get_flag(name),
            Some(passes) => {
                let values = matches.get_many::<String>(name);
                let passes = |value: &String| passes.contains(&value.as_str());
                values.is_some_and(|mut values| values.len() == 0 || !values.all(passes))
            }
        }
    }
}

impl FromArgMatches for RefusedArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = TABLE
            .iter()
            .find(|refused| refused.refuses(matches))
            .and_then(|refused| Some((*refused.names.first()?, refused.remedy)));
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RefusedArgs {
    fn augment_args(command: Command) -> Command {
        command.args(TABLE.iter().filter_map(Refused::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

//! What tests of several modules need.

use std::path::Path;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use lockstep_types::{
    Algorithm, Algorithms, Capabilities, ConfigError, DraftKv, DraftModel, DraftShape,
    EngineConfig, ModelConfig, NodeConfig, SpeculationConfig,
};

use crate::{Hardware, ServeArgs, resolve};

// The same folders as in the tests of the crate that reads them.
#[path = "../model-folder/src/testing.rs"]
mod folders;

pub(crate) use folders::{Head, folder, head, llama, with};

/// A program with nothing but the serving options.
#[derive(Debug, Parser)]
#[command(name = "lockstep")]
pub(crate) struct Program {
    #[command(flatten)]
    pub(crate) args: ServeArgs,
}

impl Program {
    pub(crate) fn definition() -> clap::Command {
        Self::command()
    }
}

/// A machine with two cores and 8 GiB.
pub(crate) fn machine() -> Hardware {
    Hardware {
        cores: vec![0, 1],
        total_memory: 8 << 30,
        available_memory: 8 << 30,
        memory_limit: None,
    }
}

/// Resolves a command line for the small Llama on the machine.
pub(crate) fn resolve_line(line: &str) -> Result<(EngineConfig, NodeConfig), ConfigError> {
    let model = folder(&llama(), None);
    resolve_model(line, model.path(), &machine())
}

/// Resolves a command line for a model folder.
pub(crate) fn resolve_model(
    line: &str,
    model: &Path,
    machine: &Hardware,
) -> Result<(EngineConfig, NodeConfig), ConfigError> {
    let words = ["lockstep"].into_iter().chain(line.split_whitespace());
    let mut args = Program::try_parse_from(words)
        .expect("options that parse")
        .args;
    args.model.model_path = Some(model.to_owned());
    resolve(&args, machine, &algorithms()).map(|resolved| resolved.value)
}

/// An algorithm of every kind.
pub(crate) fn algorithms() -> Algorithms {
    let mut algorithms = Algorithms::default();
    for name in [
        "EAGLE",
        "EAGLE3",
        "STANDALONE",
        "NGRAM",
        "BLOCKS",
        "REFUSING",
    ] {
        algorithms.add(Arc::new(TestAlgorithm(name)));
    }
    algorithms
}

/// One of them, by its name.
#[derive(Debug)]
struct TestAlgorithm(&'static str);

impl Algorithm for TestAlgorithm {
    fn name(&self) -> &str {
        self.0
    }

    fn summary(&self) -> &str {
        "drafts for tests."
    }

    fn capabilities(&self) -> Capabilities {
        let draft_kv = match self.0 {
            "EAGLE" | "EAGLE3" => DraftKv::Pairs,
            "STANDALONE" => DraftKv::Tokens,
            _ => DraftKv::None,
        };
        let has_model = draft_kv != DraftKv::None;
        Capabilities {
            needs_draft_model: has_model,
            draft_kv,
            supports_tree: self.0 != "BLOCKS",
            supports_target_verify_for_draft: self.0 == "BLOCKS",
            draft_probabilities: has_model,
            carries_hidden_states: draft_kv == DraftKv::Pairs,
            adaptive: false,
        }
    }

    fn default_shape(&self) -> DraftShape {
        match self.0 {
            "NGRAM" => DraftShape {
                num_steps: 5,
                topk: 4,
                num_draft_tokens: 8,
            },
            _ => DraftShape {
                num_steps: 3,
                topk: 1,
                num_draft_tokens: 4,
            },
        }
    }

    fn load_draft(
        &self,
        path: Option<&Path>,
        target: &ModelConfig,
    ) -> Result<Option<DraftModel>, ConfigError> {
        let load = |path| match self.0 {
            "EAGLE" => lockstep_model_folder::draft::eagle(path, target),
            "EAGLE3" => lockstep_model_folder::draft::eagle3(path, target),
            _ => lockstep_model_folder::draft::whole_model(path, target),
        };
        path.map(load).transpose()
    }

    fn validate(
        &self,
        speculation: &SpeculationConfig,
        _: &ModelConfig,
    ) -> Result<(), ConfigError> {
        match self.0 {
            "REFUSING" => Err(ConfigError::value(
                "--speculative-num-steps",
                speculation.num_steps,
                "is refused",
                "Give none",
            )),
            _ => Ok(()),
        }
    }

    fn memory_bytes(&self, speculation: &SpeculationConfig) -> u64 {
        match self.0 {
            "NGRAM" => 100 * speculation.ngram.capacity as u64,
            _ => 0,
        }
    }

    fn tokens_per_request_for_verify(&self, draft_tokens: usize, is_draft: bool) -> usize {
        match (self.0, is_draft) {
            ("BLOCKS", true) => 2 * draft_tokens,
            ("BLOCKS", false) => 10 * draft_tokens,
            _ => draft_tokens,
        }
    }
}

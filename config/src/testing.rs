//! What tests of several modules need.

use std::path::Path;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Algorithm, Algorithms, Capabilities, ConfigError, DraftKv, DraftModel, DraftShape,
    EngineConfig, Hardware, ModelConfig, NodeConfig, ServeArgs, SpeculationConfig, resolve,
};

mod heads;

pub(crate) use heads::{Head, head, tensor_names};

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

/// A small Llama's `config.json`, as transformers 4 writes it.
pub(crate) fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": null,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16"
    })
}

/// `base` with keys replaced; null stays null, the text `(absent)` removes.
pub(crate) fn with(mut base: Value, changes: &Value) -> Value {
    let map = base.as_object_mut().expect("an object");
    for (key, value) in changes.as_object().expect("an object") {
        if value == "(absent)" {
            map.remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    base
}

/// A model folder with these files.
pub(crate) fn folder(config: &Value, generation: Option<&Value>) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write(dir.path(), "config.json", config);
    if let Some(generation) = generation {
        write(dir.path(), "generation_config.json", generation);
    }
    dir
}

fn write(dir: &Path, name: &str, value: &Value) {
    std::fs::write(dir.join(name), value.to_string()).expect("written");
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
            "EAGLE" => DraftModel::load_eagle(path, target),
            "EAGLE3" => DraftModel::load_eagle3(path, target),
            _ => DraftModel::load_model(path, target),
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

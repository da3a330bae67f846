//! What tests of several modules need.

use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{ConfigError, EngineConfig, Hardware, NodeConfig, ServeArgs, resolve};

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
    resolve(&args, machine).map(|resolved| resolved.value)
}

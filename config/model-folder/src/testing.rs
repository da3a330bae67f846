//! Model folders for tests, also for those of the configuration.

use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

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

/// `base` with keys replaced. Null stays null, and the text `(absent)` removes a key.
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

/// Writes a file of JSON.
pub(crate) fn write(dir: &Path, name: &str, value: &Value) {
    std::fs::write(dir.join(name), value.to_string()).expect("written");
}

/// Kinds of folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Model,
    Eagle,
    Eagle3,
    Dflash,
}

/// A folder that fits the small Llama, with keys of its `config.json` replaced. EAGLE-3 fits
/// only if its layers are named, since the Llama has two.
pub(crate) fn head(kind: Head, changes: &Value) -> TempDir {
    let (own, tensors): (_, &[&str]) = match kind {
        Head::Model => (
            json!({"num_hidden_layers": 1, "hidden_size": 32}),
            &["model.embed_tokens.weight", "model.norm.weight"],
        ),
        Head::Eagle => (
            json!({"num_hidden_layers": 1, "bias": true}),
            &["fc.weight", "fc.bias", "layers.0.mlp.down_proj.weight"],
        ),
        Head::Eagle3 => (
            json!({
                "architectures": ["LlamaForCausalLMEagle3"],
                "num_hidden_layers": 1,
                "draft_vocab_size": 50,
            }),
            &[
                "fc.weight",
                "midlayer.hidden_norm.weight",
                "d2t",
                "lm_head.weight",
            ],
        ),
        Head::Dflash => (
            json!({
                "architectures": ["DFlashDraftModel"],
                "num_hidden_layers": 1,
                "head_dim": 8,
                "block_size": 6,
                "dflash_config": {"mask_token_id": 99, "target_layer_ids": [0]},
            }),
            &["fc.weight", "hidden_norm.weight", "norm.weight"],
        ),
    };
    let dir = folder(&with(with(llama(), &own), changes), None);
    tensor_names(dir.path(), tensors);
    dir
}

/// Writes a file of tensors without values.
pub(crate) fn tensor_names(dir: &Path, names: &[&str]) {
    let tensor = json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]});
    let mut header: Map<_, _> = names
        .iter()
        .map(|name| ((*name).to_owned(), tensor.clone()))
        .collect();
    header.insert("__metadata__".into(), json!({"fc.weight": "not a tensor"}));
    let text = Value::from(header).to_string();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    std::fs::write(dir.join("model.safetensors"), bytes).expect("written");
}

//! Folders of draft heads and models: a `config.json` and a file whose header
//! names the tensors.

use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{folder, llama, with};

/// Kinds of folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Model,
    Eagle,
    Eagle3,
}

/// A folder that fits the small Llama (EAGLE-3 only where its layers are named,
/// as it has two), with keys of its `config.json` replaced.
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

//! The hash of the configuration, which every handshake compares.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use lockstep_types::{EngineConfig, LoadFormat};

/// SHA-256 (hex) of all settings that processes on all nodes must share, and of the program's
/// version. Settings that may differ between nodes without changing a result are left out:
/// folders, names, ports, threads, time limits of one process. For a snapshot in the Hub's
/// cache the commit counts, since two commits may have different weights of one shape. Secrets
/// stand in [`NodeConfig`](lockstep_types::NodeConfig) and are never hashed.
pub fn hash(engine: &EngineConfig) -> String {
    let model = of_any_folder(json!(engine.model));
    let mut speculation = json!(engine.speculation);
    if let Some(draft) = speculation.pointer_mut("/draft/model") {
        *draft = of_any_folder(draft.take());
    }
    if let Some(kind) = speculation.pointer_mut("/draft/kind") {
        without_names(kind);
    }
    let shared = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model,
        "dtype": engine.dtype,
        "device": engine.device.kind,
        "isa": engine.isa,
        "graphs": engine.graphs,
        "tp_size": engine.parallel.tp_size,
        "dp_size": engine.parallel.dp_size,
        "ep_size": engine.parallel.ep_size,
        "nnodes": engine.parallel.nnodes,
        "kv": engine.kv,
        "schedule": engine.schedule,
        "speculation": speculation,
        "adapters": engine.adapters,
        "step_watchdog_s": engine.timeouts.step_watchdog_s,
        "context_length": engine.server.context_length,
    });
    let mut text = String::new();
    canonical(&shared, &mut text);
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// A model with its commit in place of its path. The names of its tensors say where numbers
/// are, and copies of a model may spell them otherwise. So they count only where numbers are
/// made up from them.
fn of_any_folder(mut model: Value) -> Value {
    let commit = commit(&model);
    let made_up = model.get("load_format") == Some(&json!(LoadFormat::Dummy));
    if let Some(model) = model.as_object_mut() {
        model.remove("path");
        model.insert("commit".to_owned(), commit);
    }
    if !made_up {
        without_names(&mut model);
    }
    model
}

/// Removes the names of tensors, wherever they stand: of the model, and of its blocks.
fn without_names(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("names");
            fields.values_mut().for_each(without_names);
        }
        Value::Array(items) => items.iter_mut().for_each(without_names),
        _ => {}
    }
}

/// The commit of a model whose folder is a snapshot, `…/snapshots/COMMIT`; otherwise null.
fn commit(model: &Value) -> Value {
    let path = Path::new(
        model
            .get("path")
            .and_then(Value::as_str)
            .unwrap_or_default(),
    );
    let snapshots = path.parent().and_then(Path::file_name);
    let commit = path.file_name().and_then(|name| name.to_str());
    let is_commit = |name: &&str| name.len() == 40 && name.bytes().all(|c| c.is_ascii_hexdigit());
    json!(commit.filter(|name| snapshots.is_some_and(|dir| dir == "snapshots") && is_commit(name)))
}

/// JSON without spaces and with sorted keys.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

#[cfg(test)]
mod tests;

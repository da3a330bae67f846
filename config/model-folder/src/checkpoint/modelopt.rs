//! Checkpoints of NVIDIA's Model Optimizer (modelopt), which says how it stores weights in
//! `config.json`, in `hf_quant_config.json`, or in both.

use lockstep_types::{CheckpointFormat, Fp8Checkpoint, ModelConfigError};
use serde_json::Value;

use super::{compressed_tensors, merged, refuse_unknown};
use crate::raw::Raw;

/// File of older releases.
pub(super) const FILE: &str = "hf_quant_config.json";

/// Keys that are read, or change no weight: see [`super::fp8`]. Others must say nothing.
const KNOWN: [&str; 10] = [
    "config_groups",
    "exclude_modules",
    "group_size",
    "ignore",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "producer",
    ALGORITHM,
    "quant_method",
    LAYERS,
];
/// Such keys of one layer.
const KNOWN_OF_LAYER: [&str; 2] = ["group_size", ALGORITHM];

const ALGORITHM: &str = "quant_algo";
const GROUPS: &str = "config_groups";
const LAYERS: &str = "quantized_layers";
const SERVED: &str = "of this tool's formats FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO and mixtures \
                      of them are served; use such a release of the model, or the unquantized one";
/// Rows and columns of the blocks of FP8_PB_WO.
const BLOCK: usize = 128;

/// Reads a `quantization_config` of this method.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    for list in ["exclude_modules", "ignore"] {
        config.texts(list)?;
    }
    check_groups(config)?;
    let name = config.text(ALGORITHM)?;
    let name = name.ok_or_else(|| config.wrong(ALGORITHM, "is missing"))?;
    if !name.eq_ignore_ascii_case("MIXED_PRECISION") {
        refuse_unknown(config, &KNOWN[..KNOWN.len() - 1])?;
        return Ok(CheckpointFormat::Fp8(algorithm(config, name)?));
    }
    let layers = config.object(LAYERS)?;
    let layers = layers.ok_or_else(|| config.wrong(LAYERS, "is missing"))?;
    let mut found = None;
    for name in layers.keys() {
        let Some(layer) = layers.object(name)? else {
            continue;
        };
        refuse_unknown(&layer, &KNOWN_OF_LAYER)?;
        let name = layer.text(ALGORITHM)?;
        let name = name.ok_or_else(|| layer.wrong(ALGORITHM, "is missing"))?;
        found = Some(merged(found, algorithm(&layer, name)?, &layer, ALGORITHM)?);
    }
    match found {
        Some(fp8) => Ok(CheckpointFormat::Fp8(fp8)),
        None => Err(config.wrong(LAYERS, "has no layer")),
    }
}

/// Reads `hf_quant_config.json`, which has no method, and a key for what is read by [`read`].
/// `None` if only caches are quantized.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn read_file(file: &Raw) -> Result<Option<CheckpointFormat>, ModelConfigError> {
    const INNER: &str = "quantization";
    refuse_unknown(file, &["producer", INNER])?;
    let inner = file.object(INNER)?;
    let inner = inner.ok_or_else(|| file.wrong(INNER, "is missing"))?;
    match inner.get(ALGORITHM) {
        None => Ok(None),
        Some(_) => read(&inner).map(Some),
    }
}

/// Reads an algorithm, which stands in `config` with the size of its groups.
fn algorithm(config: &Raw, name: &str) -> Result<Fp8Checkpoint, ModelConfigError> {
    let block = match name.to_ascii_uppercase().as_str() {
        "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" => None,
        "FP8_PB_WO" => Some([BLOCK; 2]),
        _ => return Err(config.unsupported(ALGORITHM, SERVED)),
    };
    match (config.count("group_size")?, block) {
        (None | Some(0), _) | (Some(BLOCK), Some(_)) => {}
        (Some(_), _) => return Err(config.unsupported("group_size", SERVED)),
    }
    Ok(Fp8Checkpoint {
        block,
        mixed: false,
        floats: Vec::new(),
    })
}

/// Checks the groups that newer releases list beside the algorithm: their weights must be 8-bit
/// floats.
fn check_groups(config: &Raw) -> Result<(), ModelConfigError> {
    let Some(groups) = config.object(GROUPS)? else {
        return Ok(());
    };
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else {
            continue;
        };
        refuse_unknown(&group, &compressed_tensors::KNOWN_OF_GROUP)?;
        let Some(weights) = group.object("weights")? else {
            return Err(group.wrong("weights", "is missing"));
        };
        refuse_unknown(&weights, &compressed_tensors::KNOWN_OF_WEIGHTS)?;
        for (key, served) in [("type", Value::from("float")), ("num_bits", 8.into())] {
            if weights.get(key) != Some(&served) {
                return Err(weights.unsupported(key, SERVED));
            }
        }
    }
    Ok(())
}

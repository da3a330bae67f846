//! Checkpoints of the compressed-tensors library, which llm-compressor writes.

use lockstep_types::{CheckpointFormat, Fp8Checkpoint, ModelConfigError};

use super::{merged, refuse_unknown};
use crate::raw::Raw;

/// Keys that are read, or change no weight: see [`super::fp8`]. Others must say nothing.
const KNOWN: [&str; 8] = [
    "config_groups",
    "format",
    "global_compression_ratio",
    "ignore",
    "kv_cache_scheme",
    "quant_method",
    "quantization_status",
    "version",
];
/// Such keys of a group. A group's targets are what its tensors show.
pub(super) const KNOWN_OF_GROUP: [&str; 5] = [
    "format",
    "input_activations",
    "output_activations",
    "targets",
    "weights",
];
/// Such keys of a group's weights.
pub(super) const KNOWN_OF_WEIGHTS: [&str; 10] = [
    "block_structure",
    "dynamic",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
];

const GROUPS: &str = "config_groups";
const SERVED: &str = "of this library's formats, 8-bit floats (float-quantized) are served; use \
                      such a release, or the unquantized one";

/// Reads a `quantization_config` of this method.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    let status = config.text("quantization_status")?;
    if !matches!(status.unwrap_or("compressed"), "compressed") {
        let remedy = "served are compressed checkpoints; save it with compression";
        return Err(config.unsupported("quantization_status", remedy));
    }
    config.texts("ignore")?;
    let groups = config.object(GROUPS)?;
    let groups = groups.ok_or_else(|| config.wrong(GROUPS, "is missing"))?;
    let mut found = None;
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else {
            continue;
        };
        let group = Fp8Checkpoint {
            block: read_group(config, &group)?,
            mixed: false,
            floats: Vec::new(),
        };
        found = Some(merged(found, group, config, GROUPS)?);
    }
    match found {
        Some(fp8) => Ok(CheckpointFormat::Fp8(fp8)),
        None => Err(config.wrong(GROUPS, "has no group")),
    }
}

/// Reads the blocks of a group of modules.
fn read_group(config: &Raw, group: &Raw) -> Result<Option<[usize; 2]>, ModelConfigError> {
    const FORMATS: [&str; 2] = ["float-quantized", "naive-quantized"];
    refuse_unknown(group, &KNOWN_OF_GROUP)?;
    let said_by = if group.get("format").is_some() {
        group
    } else {
        config
    };
    if !said_by
        .text("format")?
        .is_some_and(|format| FORMATS.contains(&format))
    {
        return Err(said_by.unsupported("format", SERVED));
    }
    let Some(weights) = group.object("weights")? else {
        return Err(group.wrong("weights", "is missing"));
    };
    refuse_unknown(&weights, &KNOWN_OF_WEIGHTS)?;
    if weights.text("type")? != Some("float") {
        return Err(weights.unsupported("type", SERVED));
    }
    if weights.size("num_bits")? != Some(8) {
        return Err(weights.unsupported("num_bits", SERVED));
    }
    if !weights.flag("symmetric", true)? {
        return Err(weights.unsupported("symmetric", SERVED));
    }
    if weights.flag("dynamic", false)? {
        return Err(weights.unsupported("dynamic", SERVED));
    }
    match weights.text("strategy")?.unwrap_or("tensor") {
        "tensor" | "channel" => Ok(None),
        "block" => match weights.pair("block_structure")? {
            Some(block) => Ok(Some(block)),
            None => Err(weights.wrong("block_structure", "is missing")),
        },
        _ => Err(weights.unsupported("strategy", "served are tensor, channel and block")),
    }
}

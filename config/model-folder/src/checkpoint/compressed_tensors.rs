//! Checkpoints of the compressed-tensors library, which llm-compressor writes.

use lockstep_types::{CheckpointFormat, Fp8Checkpoint, IntegerLayout, ModelConfigError};

use super::integers::{Kind, Kinds, bits, group};
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
const SERVED: &str = "of this library's formats, 8-bit floats (float-quantized) and integers of 4 \
                      and 8 bits (pack-quantized, int-quantized) are served; use such a release, or \
                      the unquantized one";
/// Keys of integers' weights alone: whether and how inputs were ordered, and inputs per scale.
const ORDER: &str = "actorder";
const GROUP: &str = "group_size";

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
    let (mut floats, mut kinds, mut integers) = (None, Kinds::default(), false);
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else {
            continue;
        };
        match read_group(config, &group)? {
            Group::Floats(block) => {
                let group = Fp8Checkpoint {
                    block,
                    mixed: false,
                    floats: Vec::new(),
                };
                floats = Some(merged(floats, group, config, GROUPS)?);
            }
            Group::Integers(kind) => {
                kinds.add(kind);
                integers = true;
            }
        }
    }
    let found = match integers {
        true => kinds.checkpoint(IntegerLayout::CompressedTensors, floats),
        false => floats.map(CheckpointFormat::Fp8),
    };
    found.ok_or_else(|| config.wrong(GROUPS, "has no group"))
}

/// Form of the weights of a group of modules.
enum Group {
    /// 8-bit floats, with the blocks that share a scale.
    Floats(Option<[usize; 2]>),
    /// Integers.
    Integers(Kind),
}

/// Reads the form of a group of modules.
fn read_group(config: &Raw, group: &Raw) -> Result<Group, ModelConfigError> {
    const FORMATS: [&str; 4] = [
        "float-quantized",
        "naive-quantized",
        "int-quantized",
        "pack-quantized",
    ];
    refuse_unknown(group, &KNOWN_OF_GROUP)?;
    let said_by = if group.get("format").is_some() {
        group
    } else {
        config
    };
    let format = said_by.text("format")?;
    if !format.is_some_and(|format| FORMATS.contains(&format)) {
        return Err(said_by.unsupported("format", SERVED));
    }
    let Some(weights) = group.object("weights")? else {
        return Err(group.wrong("weights", "is missing"));
    };
    let of_integers = match weights.text("type")? {
        Some("float") => false,
        Some("int") => true,
        _ => return Err(weights.unsupported("type", SERVED)),
    };
    let fits = match format {
        Some("float-quantized") => !of_integers,
        Some("int-quantized" | "pack-quantized") => of_integers,
        _ => true,
    };
    if !fits {
        return Err(weights.unsupported("type", "the format is one of another type"));
    }
    if weights.flag("dynamic", false)? {
        return Err(weights.unsupported("dynamic", SERVED));
    }
    match of_integers {
        true => read_integers(&weights).map(Group::Integers),
        false => read_floats(&weights).map(Group::Floats),
    }
}

/// Reads the blocks of 8-bit floats.
fn read_floats(weights: &Raw) -> Result<Option<[usize; 2]>, ModelConfigError> {
    refuse_unknown(weights, &KNOWN_OF_WEIGHTS)?;
    if weights.size("num_bits")? != Some(8) {
        return Err(weights.unsupported("num_bits", SERVED));
    }
    if !weights.flag("symmetric", true)? {
        return Err(weights.unsupported("symmetric", SERVED));
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

/// Reads the kind of integers.
fn read_integers(weights: &Raw) -> Result<Kind, ModelConfigError> {
    refuse_unknown(weights, &[&KNOWN_OF_WEIGHTS[..], &[ORDER, GROUP]].concat())?;
    let Some(bits) = bits(weights, "num_bits")? else {
        return Err(weights.wrong("num_bits", "is missing"));
    };
    let size = group(weights, GROUP)?;
    let group = match weights.text("strategy")? {
        Some("group") | None if matches!(size, Some(Some(_))) => size.flatten(),
        Some("group") => return Err(weights.wrong(GROUP, "is missing")),
        Some("tensor" | "channel") | None if !matches!(size, Some(Some(_))) => None,
        Some("tensor" | "channel") => {
            return Err(weights.unsupported(GROUP, "the strategy has no groups"));
        }
        _ => return Err(weights.unsupported("strategy", "served are tensor, channel and group")),
    };
    let scattered = match weights.get(ORDER).map(|order| order.as_bool()) {
        None => false,
        Some(Some(scattered)) => scattered,
        Some(None) => match weights.text(ORDER)? {
            Some("group" | "dynamic") => true,
            Some("weight" | "static") => false,
            _ => return Err(weights.unsupported(ORDER, "served are weight and group")),
        },
    };
    Ok(Kind {
        bits,
        group,
        zeros: !weights.flag("symmetric", true)?,
        scattered,
    })
}

//! Checkpoints of AWQ's tools: AutoAWQ, GPTQModel, and AutoRound where it writes their format.

use lockstep_types::{CheckpointFormat, IntegerLayout, ModelConfigError};

use super::integers::{Kind, Kinds, bits, group, refuse_unknown, refuse_unlike};
use crate::raw::Raw;

/// Keys that are read, or change no weight. Zero points are read from the files whatever
/// `zero_point` and `sym` say. Which modules are floats, the tensors say.
const KNOWN: [&str; 13] = [
    "backend",
    "bits",
    "checkpoint_format",
    "data_type",
    "format",
    "group_size",
    "method",
    "pack_dtype",
    "quant_method",
    "sym",
    "version",
    "w_bit",
    "zero_point",
];
/// A key of older files, which is read too.
const OLD_GROUP: &str = "q_group_size";

/// Reads a `quantization_config` of this method, or the `quant_config.json` beside it.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &[&KNOWN[..], &[OLD_GROUP]].concat())?;
    for key in ["version", "format", "checkpoint_format"] {
        refuse_unlike(config, key, "gemm")?;
    }
    refuse_unlike(config, "method", "awq")?;
    refuse_unlike(config, "pack_dtype", "int32")?;
    refuse_unlike(config, "data_type", "int")?;
    if config
        .text("backend")?
        .is_some_and(|backend| backend == "llm-awq")
    {
        return Err(config.unsupported("backend", "its files have an order of their own"));
    }
    for flag in ["sym", "zero_point"] {
        config.flag(flag, false)?;
    }
    let key = if config.get("bits").is_some() {
        "bits"
    } else {
        "w_bit"
    };
    match bits(config, key)? {
        Some(4) => {}
        Some(_) => return Err(config.unsupported(key, "AWQ is served with integers of 4 bits")),
        None => return Err(config.wrong("bits", "is missing")),
    }
    let group = match group(config, "group_size")? {
        Some(group) => Some(group),
        None => group(config, OLD_GROUP)?,
    };
    let group = group.ok_or_else(|| config.wrong("group_size", "is missing"))?;
    let mut kinds = Kinds::default();
    kinds.add(Kind {
        bits: 4,
        group,
        zeros: true,
        scattered: false,
    });
    let found = kinds.checkpoint(IntegerLayout::Awq, None);
    found.ok_or_else(|| config.wrong("bits", "is missing"))
}

//! Checkpoints of AutoRound in its own format, whose tensors are those of GPTQ or AWQ.

use lockstep_types::{CheckpointFormat, IntegerLayout, ModelConfigError};

use super::gptq::read_kinds;
use super::integers::refuse_unknown;
use crate::raw::Raw;

/// Keys that are read, or change no weight: see [`super::gptq`].
const KNOWN: [&str; 9] = [
    "backend",
    "bits",
    "data_type",
    "dynamic",
    "extra_config",
    "group_size",
    PACKING,
    "quant_method",
    "sym",
];
const PACKING: &str = "packing_format";

/// Reads a `quantization_config` of this method.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    let layout = match config.text(PACKING)? {
        Some("auto_round:auto_gptq" | "auto_round:gptq") => IntegerLayout::Gptq { less_one: true },
        Some("auto_round" | "auto_round:gptqmodel") => IntegerLayout::Gptq { less_one: false },
        Some("auto_round:auto_awq" | "auto_round:awq") => IntegerLayout::Awq,
        // The first releases of the format had no such key. Their zero points are stored less one.
        None if config.get("backend").is_none() => IntegerLayout::Gptq { less_one: true },
        _ => {
            let remedy = "served are auto_round:auto_gptq, auto_round:gptqmodel and \
                          auto_round:auto_awq";
            return Err(config.unsupported(PACKING, remedy));
        }
    };
    let found = read_kinds(config, layout)?;
    if let (CheckpointFormat::Integers(integers), IntegerLayout::Awq) = (&found, layout)
        && integers.bits != [4]
    {
        return Err(config.unsupported("bits", "AWQ is served with integers of 4 bits"));
    }
    Ok(found)
}

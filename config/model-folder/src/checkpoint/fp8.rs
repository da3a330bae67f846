//! FP8 as DeepSeek and Qwen publish it: 8-bit floats with a scale for every block of a matrix,
//! or for the whole matrix. transformers calls it fine-grained FP8.

use lockstep_types::{CheckpointFormat, Fp8Checkpoint, ModelConfigError};

use super::refuse_unknown;
use crate::raw::Raw;

/// Keys that are read, or change no weight. Scales of inputs and of caches are a leave to round
/// these, which this engine does not take. Which matrices are floats, the tensors say.
const KNOWN: [&str; 8] = [
    "activation_scheme",
    "fmt",
    "ignored_layers",
    "kv_cache_scheme",
    "modules_to_not_convert",
    "quant_method",
    "scale_fmt",
    "weight_block_size",
];

/// Reads a `quantization_config` of this method.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    if !matches!(config.text("fmt")?.unwrap_or("e4m3"), "e4m3") {
        return Err(config.unsupported("fmt", "the only 8-bit floats served are e4m3"));
    }
    if !matches!(
        config.text("activation_scheme")?.unwrap_or("dynamic"),
        "dynamic" | "static"
    ) {
        return Err(config.unsupported("activation_scheme", "served are dynamic and static"));
    }
    if !matches!(
        config.text("scale_fmt")?.unwrap_or("ue8m0"),
        "ue8m0" | "float"
    ) {
        return Err(config.unsupported("scale_fmt", "served are float and ue8m0"));
    }
    for list in ["ignored_layers", "modules_to_not_convert"] {
        config.texts(list)?;
    }
    Ok(CheckpointFormat::Fp8(Fp8Checkpoint {
        block: config.pair("weight_block_size")?,
        mixed: false,
        floats: Vec::new(),
    }))
}

//! MXFP4 as OpenAI publishes it: 4-bit floats with an exponent for every 32 inputs of experts.

use lockstep_types::{CheckpointFormat, ModelConfigError, Mxfp4Checkpoint};

use super::refuse_unknown;
use crate::raw::Raw;

/// Keys that are read, or change no weight. Which stacks are floats, the tensors say.
/// `dequantize` asks for floats in memory, which have the same values.
const KNOWN: [&str; 3] = ["dequantize", "modules_to_not_convert", "quant_method"];

/// Reads a `quantization_config` of this method.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    Ok(CheckpointFormat::Mxfp4(Mxfp4Checkpoint {
        floats: Vec::new(),
    }))
}

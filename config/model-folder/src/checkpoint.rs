//! Form of the weight matrices in a model's files, from the `quantization_config` of its
//! `config.json`. Each method of rounding is a file.

mod compressed_tensors;
mod fp8;
mod mxfp4;

use std::path::Path;

use lockstep_files::weights::{Dtype, weight_files};
use lockstep_types::{
    CheckpointFormat, ExpertTensors, LayerSpec, Mlp, ModelConfig, ModelConfigError,
    Mxfp4Checkpoint, TensorNames,
};
use serde_json::{Map, Value};

use crate::raw::Raw;

/// Key of the form; without it matrices are floats.
pub(crate) const KEY: &str = "quantization_config";

/// Reader of a method's keys.
type Reader = fn(&Raw) -> Result<CheckpointFormat, ModelConfigError>;

/// Methods that are served, by their names in `quant_method`.
const METHODS: [(&str, Reader); 3] = [
    ("compressed-tensors", compressed_tensors::read),
    ("fp8", fp8::read),
    ("mxfp4", mxfp4::read),
];

/// Reads the form of the weight matrices.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] for a form that is not served names the remedy.
pub(crate) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    let says_nothing = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    if config.get(KEY).is_none_or(says_nothing) {
        return Ok(CheckpointFormat::Floats);
    }
    let Some(method) = config.object(KEY)? else {
        return Ok(CheckpointFormat::Floats);
    };
    let name = method.text("quant_method")?.unwrap_or_default();
    match METHODS.iter().find(|(served, _)| *served == name) {
        Some((_, read)) => read(&method),
        None => {
            let remedy = "served are 8-bit floats of the methods fp8 and compressed-tensors, and \
                          mxfp4; use such a release of the model, or the unquantized one";
            Err(config.unsupported(KEY, remedy))
        }
    }
}

/// Refuses keys that are not `known` and say something: they may change weights.
fn refuse_unknown(config: &Raw, known: &[&str]) -> Result<(), ModelConfigError> {
    match config.keys().find(|key| !known.contains(key)) {
        None => Ok(()),
        Some(key) => Err(config.unsupported(key, "it may change weights, and is not served")),
    }
}

/// A note for the operator about a checkpoint that is not of plain floats.
pub(crate) fn note(format: &CheckpointFormat) -> Option<String> {
    match format {
        CheckpointFormat::Floats => None,
        CheckpointFormat::Fp8(_) => Some(
            "the weights are 8-bit floats (FP8): they are multiplied as they are, and inputs are \
             not rounded to 8 bits, whatever `quantization_config` allows"
                .to_owned(),
        ),
        CheckpointFormat::Mxfp4(_) => Some(
            "the experts' weights are 4-bit floats (MXFP4): they are multiplied as they are, and \
             inputs are not rounded to 4 bits"
                .to_owned(),
        ),
    }
}

/// Finds the matrices that are floats in a checkpoint of another form. The tensors say it, as
/// lists of exceptions in `config.json` are written in many ways. Missing or damaged weights
/// are reported by the code that loads them.
pub(crate) fn with_floats(
    mut format: CheckpointFormat,
    folder: &Path,
    names: &TensorNames,
) -> CheckpointFormat {
    // Dimensions of matrices, and the type that is no float.
    let (floats, dimensions, rounded) = match &mut format {
        CheckpointFormat::Floats => return format,
        CheckpointFormat::Fp8(fp8) => (&mut fp8.floats, 2, Dtype::F8_E4M3),
        CheckpointFormat::Mxfp4(mxfp4) => (&mut mxfp4.floats, 3, Dtype::U8),
    };
    let files = weight_files(folder).ok().flatten().unwrap_or_default();
    for (name, place) in files.iter().flat_map(|file| &file.tensors) {
        if place.shape.len() == dimensions && place.dtype != rounded {
            let below = match dimensions {
                2 => names.module(name),
                _ => names.below(name),
            };
            floats.extend(below.map(str::to_owned));
        }
    }
    floats.sort_unstable();
    floats.dedup();
    format
}

/// Checks that a checkpoint of MXFP4 has matrices in the form that is served: stacked experts,
/// in whole groups of inputs.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the remedy.
pub(crate) fn check(config: &Raw, model: &ModelConfig) -> Result<(), ModelConfigError> {
    if model.checkpoint.mxfp4().is_none() {
        return Ok(());
    }
    let stacked = |layer: &LayerSpec| match &layer.mlp {
        Mlp::Experts(experts) => {
            let inputs = [model.hidden_size, experts.width];
            let whole = |inputs: &usize| inputs.is_multiple_of(Mxfp4Checkpoint::GROUP);
            matches!(experts.names.experts, ExpertTensors::Interleaved { .. })
                && inputs.iter().all(whole)
        }
        Mlp::Gated(_) | Mlp::Plain(_) | Mlp::Parallel(_) | Mlp::None => false,
    };
    match model.layers.iter().all(stacked) {
        true => Ok(()),
        false => {
            let remedy = "MXFP4 is served in stacked experts as gpt-oss has them, in groups of 32 \
                          inputs; use an unquantized release of the model";
            Err(config.unsupported(KEY, remedy))
        }
    }
}

#[cfg(test)]
mod tests;

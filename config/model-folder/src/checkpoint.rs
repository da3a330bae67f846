//! Form of the weight matrices in a model's files, from the `quantization_config` of its
//! `config.json`. Each method of rounding is a file.

mod compressed_tensors;
mod fp8;

use std::path::Path;

use lockstep_files::weights::{Dtype, weight_files};
use lockstep_types::{CheckpointFormat, ModelConfigError, TensorNames};
use serde_json::{Map, Value};

use crate::raw::Raw;

/// Key of the form; without it matrices are floats.
pub(crate) const KEY: &str = "quantization_config";

/// Reader of a method's keys.
type Reader = fn(&Raw) -> Result<CheckpointFormat, ModelConfigError>;

/// Methods that are served, by their names in `quant_method`.
const METHODS: [(&str, Reader); 2] = [
    ("compressed-tensors", compressed_tensors::read),
    ("fp8", fp8::read),
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
            let remedy = "served are 8-bit floats of the methods fp8 and compressed-tensors; use \
                          such a release of the model, or the unquantized one";
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
    let CheckpointFormat::Fp8(fp8) = &mut format else {
        return format;
    };
    let files = weight_files(folder).ok().flatten().unwrap_or_default();
    for (name, place) in files.iter().flat_map(|file| &file.tensors) {
        if place.shape.len() == 2 && place.dtype != Dtype::F8_E4M3 {
            fp8.floats.extend(names.module(name).map(str::to_owned));
        }
    }
    fp8.floats.sort_unstable();
    fp8.floats.dedup();
    format
}

#[cfg(test)]
mod tests;

//! Form of the weight matrices in a model's files, from the `quantization_config` of its
//! `config.json`, or from a file beside it. Each method of rounding is a file.

mod auto_round;
mod awq;
mod beside;
mod compressed_tensors;
mod fp8;
mod gguf;
mod gptq;
mod integers;
mod modelopt;
mod mxfp4;
mod stored;

use lockstep_types::{
    CheckpointFormat, ExpertTensors, Fp8Checkpoint, LayerSpec, Mlp, ModelConfig, ModelConfigError,
    Mxfp4Checkpoint,
};
use serde_json::{Map, Value};

use crate::raw::Raw;

pub(crate) use beside::of_folder;
pub(crate) use stored::read_stored;

/// Key of the form; without it matrices are floats.
pub(crate) const KEY: &str = "quantization_config";

/// Key of the method in a description of the form.
const METHOD: &str = "quant_method";

/// Reader of a method's keys.
type Reader = fn(&Raw) -> Result<CheckpointFormat, ModelConfigError>;

/// Methods that are served, by their names in `quant_method`.
const METHODS: [(&str, Reader); 9] = [
    ("auto-round", auto_round::read),
    ("awq", awq::read),
    ("compressed-tensors", compressed_tensors::read),
    ("fp8", fp8::read),
    ("gptq", gptq::read),
    ("inc", auto_round::read),
    ("intel/auto-round", auto_round::read),
    ("modelopt", modelopt::read),
    ("mxfp4", mxfp4::read),
];

/// Remedy for forms that are not served, as a clause.
const UNQUANTIZED: &str = "use a release of the model in 8-bit floats (of the methods fp8, \
                           compressed-tensors or modelopt), in integers (compressed-tensors, \
                           gptq, awq or auto-round) or in mxfp4, or the unquantized one";

/// Returns true if `config.json` names a form.
fn says(config: &Raw) -> bool {
    let says_nothing = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    !config.get(KEY).is_none_or(says_nothing)
}

/// Reads the form of the weight matrices that `config.json` names.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] for a form that is not served names the remedy.
pub(crate) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    if !says(config) {
        return Ok(CheckpointFormat::Floats);
    }
    let Some(method) = config.object(KEY)? else {
        return Ok(CheckpointFormat::Floats);
    };
    read_method(&method, "")
}

/// Reads a configuration by its `quant_method`, or as one of `default` if it names none.
fn read_method(config: &Raw, default: &str) -> Result<CheckpointFormat, ModelConfigError> {
    let name = config.text(METHOD)?.unwrap_or(default);
    match METHODS.iter().find(|(served, _)| *served == name) {
        Some((_, read)) => read(config),
        None => Err(config.unsupported(METHOD, UNQUANTIZED)),
    }
}

/// Joins the scales of one more group of matrices, which `config` names by `key`, to those of
/// the groups before it. All blocks must be of one size.
fn merged(
    all: Option<Fp8Checkpoint>,
    group: Fp8Checkpoint,
    config: &Raw,
    key: &str,
) -> Result<Fp8Checkpoint, ModelConfigError> {
    let Some(all) = all else {
        return Ok(group);
    };
    let block = match (all.block, group.block) {
        (Some(first), Some(other)) if first != other => {
            let remedy = "blocks of scales must have one size in all groups";
            return Err(config.unsupported(key, remedy));
        }
        (first, other) => first.or(other),
    };
    Ok(Fp8Checkpoint {
        block,
        mixed: all.mixed || group.mixed || all.block != group.block,
        floats: all.floats,
    })
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
        CheckpointFormat::Floats | CheckpointFormat::Gguf(_) => None,
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
        CheckpointFormat::Integers(_) => Some(
            "the weights are integers with scales, which stay what they are: inputs are rounded to \
             integers of 8 bits for weights of 4 bits, and of 16 bits for weights of 8 bits, \
             whatever `quantization_config` says of inputs"
                .to_owned(),
        ),
    }
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

//! Form of the weight matrices in a model's files, from the `quantization_config` of its
//! `config.json`.

use lockstep_types::{CheckpointFormat, ModelConfigError};
use serde_json::{Map, Value};

use crate::raw::Raw;

/// Key of the form; without it matrices are floats.
pub(crate) const KEY: &str = "quantization_config";

/// Reads the form of the weight matrices.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] for a form that is not served names the remedy.
pub(crate) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    let says_nothing = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    match config.get(KEY).filter(|value| !says_nothing(value)) {
        None => Ok(CheckpointFormat::Floats),
        Some(_) => Err(config.unsupported(KEY, "use the model's unquantized release")),
    }
}

//! Files beside `config.json` in which tools say how weights are stored, instead of in its
//! `quantization_config` or beside it.

use std::path::Path;

use lockstep_files::is_gguf;
use lockstep_types::{CheckpointFormat, GgufCheckpoint, ModelConfigError};

use super::{KEY, modelopt, read, read_method, says};
use crate::raw::Raw;

/// Files of tools that describe integers, and the method that each is of if it names none.
const INTEGERS: [(&str, &str); 2] = [
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
];

/// Reads the form of the weight matrices of `folder`, whose `config.json` is `config`.
///
/// # Errors
/// The errors of [`read`]; [`ModelConfigError::Unsupported`] if another file names a form that is
/// not served, or not the form that `config.json` names.
pub(crate) fn of_folder(folder: &Path, config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    if is_gguf(folder) {
        return Ok(CheckpointFormat::Gguf(GgufCheckpoint::default()));
    }
    let own = read(config)?;
    for (name, method) in INTEGERS {
        if let Some(file) = Raw::read_optional(folder, name)? {
            return agreed(config, &own, read_method(&file, method)?, &file, "bits");
        }
    }
    let Some(file) = Raw::read_optional(folder, modelopt::FILE)? else {
        return Ok(own);
    };
    match modelopt::read_file(&file)? {
        None => Ok(own),
        Some(found) => agreed(config, &own, found, &file, "quantization"),
    }
}

/// Returns the form `found` that `file` names by `key`, if `config.json` names no other.
fn agreed(
    config: &Raw,
    own: &CheckpointFormat,
    found: CheckpointFormat,
    file: &Raw,
    key: &str,
) -> Result<CheckpointFormat, ModelConfigError> {
    match !says(config) || found == *own {
        true => Ok(found),
        false => {
            let remedy =
                format!("`{KEY}` of config.json says otherwise; remove the one that is wrong");
            Err(file.unsupported(key, remedy))
        }
    }
}

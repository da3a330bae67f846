//! Files beside `config.json` in which tools say how weights are stored, instead of in its
//! `quantization_config` or beside it.

use std::path::Path;

use lockstep_files::is_gguf;
use lockstep_types::{CheckpointFormat, GgufCheckpoint, ModelConfigError};

use super::{KEY, UNQUANTIZED, modelopt, read, says};
use crate::raw::Raw;

/// Files of tools whose formats are not served: a key that all of them have, and the tool.
const REFUSED: [(&str, &[&str], &str); 2] = [
    ("quantize_config.json", &["bits"], "GPTQ"),
    ("quant_config.json", &["w_bit", "bits"], "AWQ"),
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
    for (name, keys, tool) in REFUSED {
        let Some(file) = Raw::read_optional(folder, name)? else {
            continue;
        };
        let key = keys.iter().find(|key| file.get(key).is_some());
        let remedy = format!(
            "the file says that weights are in the integers of {tool}; {UNQUANTIZED}, or remove \
             the file if they are not"
        );
        return Err(file.unsupported(key.unwrap_or(&keys[0]), remedy));
    }
    let Some(file) = Raw::read_optional(folder, modelopt::FILE)? else {
        return Ok(own);
    };
    match modelopt::read_file(&file)? {
        None => Ok(own),
        Some(found) if !says(config) || found == own => Ok(found),
        Some(_) => {
            let remedy =
                format!("`{KEY}` of config.json says otherwise; remove the one that is wrong");
            Err(file.unsupported("quantization", remedy))
        }
    }
}

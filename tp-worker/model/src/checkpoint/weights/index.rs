//! Names of the files in a folder that hold weights.

use std::{collections::BTreeMap, io, path::Path};

use lockstep_files::{LARGEST_INDEX, MOST_WEIGHT_FILES};

use crate::ModelError;

/// Returns the names of the safetensors files of a folder, in a fixed order.
pub(super) fn weight_files(folder: &Path) -> Result<Vec<String>, ModelError> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let text = match lockstep_files::read(folder, INDEX, LARGEST_INDEX) {
        Ok(text) => text,
        Err(error) if absent(&error) => {
            return match lockstep_files::open(folder, SINGLE) {
                Err(error) if absent(&error) => Err(ModelError::NoWeights {
                    folder: folder.to_owned(),
                }),
                // Other errors are reported when the file is opened.
                _ => Ok(vec![SINGLE.to_owned()]),
            };
        }
        Err(source) => {
            return Err(ModelError::Read {
                file: folder.join(INDEX),
                source,
            });
        }
    };
    let damaged = |reason: String| ModelError::Damaged {
        file: folder.join(INDEX),
        reason,
    };
    let parsed: Index = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
    let mut names: Vec<_> = parsed.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    if names.len() > MOST_WEIGHT_FILES {
        return Err(damaged(format!(
            "it names {} files, more than {MOST_WEIGHT_FILES}",
            names.len()
        )));
    }
    for name in &names {
        // Only a file name is allowed: an index must not reach outside its folder.
        if Path::new(name)
            .file_name()
            .is_none_or(|file| file != name.as_str())
        {
            return Err(damaged(format!("{name:?} is not a file name")));
        }
    }
    Ok(names)
}

/// Content of `model.safetensors.index.json`.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

//! Norms that some EAGLE-3 heads have beyond SafeAILab's.

use lockstep_types::{ConfigError, Eagle3Norms, ModelConfigError};

use super::OPTION;
use super::capture::EAGLE_CONFIG;
use super::folder::{Folder, damaged};
use crate::raw::Raw;

const BEFORE_PROJECTION: &str = "norm_before_fc";
const OF_LAYERS: &str = "fc_norm";

/// Reads the norms of a head, in vLLM's keys, and compares them with its tensors.
///
/// # Errors
/// [`ConfigError::File`] for norms that are not served, and for tensors that contradict the keys.
pub(super) fn read(folder: &Folder) -> Result<Eagle3Norms, ConfigError> {
    let norms = keys(&folder.config).map_err(|error| damaged(&folder.path, error))?;
    match_tensors(folder, norms)?;
    Ok(norms)
}

/// `norm_before_fc` counts in `eagle_config` first, as NVIDIA writes it. The other keys count on
/// the top level alone, and nobody says what another value in `eagle_config` means.
fn keys(config: &Raw) -> Result<Eagle3Norms, ModelConfigError> {
    let inner = config.object(EAGLE_CONFIG)?;
    refuse(config)?;
    let flag = |key| {
        let value = config.flag(key, false)?;
        match &inner {
            Some(inner) if inner.flag(key, value)? != value => {
                let remedy = "this key counts on the top level of config.json, which says \
                              otherwise; give a head whose keys agree";
                Err(inner.unsupported(key, remedy))
            }
            _ => Ok(value),
        }
    };
    let outer = config.flag(BEFORE_PROJECTION, false)?;
    let before_projection = match &inner {
        Some(inner) => inner.flag(BEFORE_PROJECTION, outer)?,
        None => outer,
    };
    if let Some(inner) = &inner {
        refuse(inner)?;
    }
    Ok(Eagle3Norms {
        before_projection,
        of_layers: flag(OF_LAYERS)?,
        before_residual: flag("norm_before_residual")?,
        of_output: flag("norm_output")?,
    })
}

/// Refuses keys of norms whose meaning no public engine shows.
fn refuse(config: &Raw) -> Result<(), ModelConfigError> {
    /// Keys, and the values of heads that are served.
    const KEYS: [(&str, bool); 3] = [
        ("use_mtp_layernorm", false),
        ("use_input_layernorm_in_first_layer", true),
        ("use_last_layernorm", true),
    ];
    for (key, own) in KEYS {
        if config.flag(key, own)? != own {
            let remedy = "heads with this arrangement of norms are not served; give one that was \
                          trained without it";
            return Err(config.unsupported(key, remedy));
        }
    }
    Ok(())
}

/// Checks that the tensors of the norms before the projection are there if the keys ask for them,
/// and not otherwise.
fn match_tensors(folder: &Folder, norms: Eagle3Norms) -> Result<(), ConfigError> {
    for (key, wanted, tensor) in [
        (
            BEFORE_PROJECTION,
            norms.before_projection,
            "input_norm.weight",
        ),
        (OF_LAYERS, norms.of_layers, "fc_norm.0.weight"),
    ] {
        if !folder.lists_tensors() || folder.has(tensor) == wanted {
            continue;
        }
        let message = match wanted {
            true => format!(
                "config.json has `{key}`, but there is no tensor {tensor}. Give the whole head, or \
                 the config.json that belongs to it."
            ),
            false => format!(
                "there is a tensor {tensor}, but config.json does not have `{key}` as true. Give \
                 the config.json that belongs to the head."
            ),
        };
        return Err(ConfigError::file(OPTION, &folder.path, message));
    }
    Ok(())
}

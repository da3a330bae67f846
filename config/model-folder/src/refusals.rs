//! Refusals: settings of `config.json` that would change results and are not implemented, for
//! all families.

use lockstep_types::ModelConfigError;
use serde_json::{Map, Value};

use crate::raw::Raw;

/// Checks the settings of a text model.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the setting and the remedy.
pub(crate) fn check(config: &Raw) -> Result<(), ModelConfigError> {
    check_quantization(config)?;
    if !matches!(
        config.text("hidden_act")?.unwrap_or("silu"),
        "silu" | "swish"
    ) {
        return Err(config.unsupported("hidden_act", "the only activation served is silu"));
    }
    Ok(())
}

/// Checks that the checkpoint is not quantized already, which a wrapper may say too.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the remedy.
pub(crate) fn check_quantization(config: &Raw) -> Result<(), ModelConfigError> {
    let unquantized = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    if config
        .get("quantization_config")
        .is_some_and(|value| !unquantized(value))
    {
        let remedy = "use the model's unquantized release";
        return Err(config.unsupported("quantization_config", remedy));
    }
    Ok(())
}

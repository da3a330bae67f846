//! Refusals: settings of `config.json` that would change results and are not implemented, for
//! all families.

use lockstep_types::ModelConfigError;

use crate::raw::Raw;

/// Checks the settings of a text model.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names the setting and the remedy.
pub(crate) fn check(config: &Raw) -> Result<(), ModelConfigError> {
    if !matches!(
        config.text("hidden_act")?.unwrap_or("silu"),
        "silu" | "swish"
    ) {
        return Err(config.unsupported("hidden_act", "the only activation served is silu"));
    }
    Ok(())
}

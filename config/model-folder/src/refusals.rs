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
    for key in ["num_local_experts", "num_experts", "n_routed_experts"] {
        // Without experts the model is a dense one.
        if config.get(key).is_some_and(|experts| experts != 0) {
            return Err(
                config.unsupported(key, "mixtures of experts are not served; use a dense model")
            );
        }
    }
    Ok(())
}

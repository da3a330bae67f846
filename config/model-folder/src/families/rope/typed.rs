//! Rotary parameters of families whose full and sliding layers rotate differently.

use lockstep_types::ModelConfigError;
use serde_json::{Value, json};

use super::{PARAMETERS, SCALING};
use crate::families::layer_types::LayerType;
use crate::raw::Raw;

/// Bases of the frequencies where a file names none, and the key of older files for the base of
/// sliding layers.
pub(in crate::families) struct Bases {
    /// Base of full layers, whose key in older files is `rope_theta`.
    pub full: f64,
    /// Base of sliding layers.
    pub sliding: f64,
    /// Key of sliding layers' base in older files.
    pub sliding_key: &'static str,
}

/// Returns `config` with the parameters of both kinds of layers in `rope_parameters`, as
/// transformers 5 writes them. In older files `rope_scaling` belongs to the full layers alone. A
/// kind without a base has that of the older key.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged, or `rope_parameters` does not tell kinds apart.
pub(in crate::families) fn by_type(config: &Raw, bases: &Bases) -> Result<Raw, ModelConfigError> {
    let named = |key: &str, base: f64| Ok(config.number(key)?.unwrap_or(base));
    let kinds = [
        (LayerType::Full.name(), named("rope_theta", bases.full)?),
        (
            LayerType::Sliding.name(),
            named(bases.sliding_key, bases.sliding)?,
        ),
    ];
    // Refuses what is no object.
    config.object(PARAMETERS)?;
    let mut config = config.clone();
    let given = config.get(PARAMETERS).cloned();
    let mut all = match given {
        Some(given) if given.as_object().is_some_and(|given| !given.is_empty()) => {
            if kinds.iter().all(|(kind, _)| given.get(kind).is_none()) {
                let message = format!("has no `{}`", kinds[0].0);
                return Err(config.wrong(PARAMETERS, message));
            }
            given
        }
        _ => {
            let full = match config.get(SCALING) {
                Some(Value::Object(scaling)) => Value::Object(scaling.clone()),
                Some(other) => {
                    return Err(config.wrong(SCALING, format!("is {other}, not an object")));
                }
                None => json!({}),
            };
            config.put(SCALING, Value::Null);
            json!({ kinds[0].0: full })
        }
    };
    for (kind, base) in kinds {
        if all[kind].is_null() {
            all[kind] = json!({});
        }
        if all[kind].is_object() && all[kind]["rope_theta"].is_null() {
            all[kind]["rope_theta"] = base.into();
        }
    }
    config.put(PARAMETERS, all);
    Ok(config)
}

//! Sizes of Mamba-2 blocks, whose keys families name differently.

use lockstep_types::{GatedDeltaSpec, Mamba2Names, Mamba2Spec, ModelConfigError};

use crate::raw::Raw;

/// Keys of a family's Mamba-2 blocks.
pub(super) struct Keys {
    pub heads: &'static str,
    pub head_dim: &'static str,
    pub groups: &'static str,
    pub state_dim: &'static str,
    pub taps: &'static str,
    pub convolution_bias: &'static str,
    pub bias: &'static str,
}

/// Key of the bounds of steps.
const BOUNDS: &str = "time_step_limit";

/// Reads the blocks, whose tensors have the prefix `prefix` below their layers'.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for sizes or bounds that are not
/// served.
pub(super) fn read(
    config: &Raw,
    keys: &Keys,
    head_dim: usize,
    prefix: &str,
) -> Result<Mamba2Spec, ModelConfigError> {
    let heads = config.required(keys.heads)?;
    let groups = config.required(keys.groups)?;
    if !heads.is_multiple_of(groups) {
        let message = format!("is {groups}, which does not divide {heads} heads");
        return Err(config.wrong(keys.groups, message));
    }
    let state_dim = config.required(keys.state_dim)?;
    for (key, width) in [(keys.head_dim, head_dim), (keys.state_dim, state_dim)] {
        if !width.is_multiple_of(GatedDeltaSpec::UNIT) {
            return Err(config.unsupported(key, "it is served in multiples of 16"));
        }
    }
    let taps = config.required(keys.taps)?;
    if !(2..=GatedDeltaSpec::MOST_TAPS).contains(&taps) {
        let remedy = format!("served are 2 to {} taps", GatedDeltaSpec::MOST_TAPS);
        return Err(config.unsupported(keys.taps, remedy));
    }
    unbounded(config)?;
    Ok(Mamba2Spec {
        heads,
        head_dim,
        groups,
        state_dim,
        taps,
        convolution_bias: config.flag(keys.convolution_bias, true)?,
        bias: config.flag(keys.bias, false)?,
        names: Mamba2Names::below(prefix),
    })
}

/// Checks that steps have no bounds but zero: JSON has no infinity, so files write it in some other
/// way.
fn unbounded(config: &Raw) -> Result<(), ModelConfigError> {
    let Some(bounds) = config.get(BOUNDS) else {
        return Ok(());
    };
    let bounds_of = bounds.as_array().map(Vec::as_slice).unwrap_or_default();
    let infinite = |value: &serde_json::Value| {
        let text = value.get("__float__").unwrap_or(value);
        matches!(text.as_str(), Some("Infinity" | "inf"))
    };
    match bounds_of {
        [least, most] if least.as_f64() == Some(0.0) && infinite(most) => Ok(()),
        _ => {
            let remedy = "steps are served without bounds, from 0 to infinity";
            Err(config.unsupported(BOUNDS, remedy))
        }
    }
}

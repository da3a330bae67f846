//! Parameters of YaRN (Peng et al., arXiv:2309.00071).

use lockstep_types::{ModelConfigError, RopeScaling};

use super::stretch::Stretch;
use crate::raw::Raw;

/// Keys beside YaRN's parameters that say nothing more.
const KNOWN: [&str; 16] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "max_position_embeddings",
    "mscale",
    "mscale_all_dim",
    // A token of text has one position on all axes.
    "mrope_interleaved",
    "mrope_section",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
    "finetuned",
];

/// Reads the parameters of `rope`, as transformers does. Other keys are refused, since they may
/// change results.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing, damaged or not known.
pub(super) fn read(config: &Raw, rope: &Raw) -> Result<RopeScaling, ModelConfigError> {
    if let Some(key) = rope.keys().find(|key| !KNOWN.contains(key)) {
        return Err(rope.unsupported(key, "YaRN has no such parameter; remove the key"));
    }
    let Stretch {
        original: original_max_position,
        factor,
        ..
    } = Stretch::read(config, rope)?;
    let growth = |strength: f64| grown(strength, factor);
    let scales = (strength(rope, "mscale")?, strength(rope, "mscale_all_dim")?);
    let attention_factor = match (rope.number("attention_factor")?, scales) {
        (Some(given), _) => given,
        (None, (Some(scale), Some(all))) => growth(scale) / growth(all),
        (None, _) => growth(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: rope.number("beta_fast")?.unwrap_or(32.0),
        beta_slow: rope.number("beta_slow")?.unwrap_or(1.0),
        original_max_position,
        attention_factor,
        truncate: rope.flag("truncate", true)?,
    })
}

/// Returns `m(mscale_all_dim)`, one where the key is not given or nothing is stretched.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged.
pub(super) fn growth_of_all(config: &Raw, rope: &Raw) -> Result<f64, ModelConfigError> {
    let kind = rope.text("rope_type")?.or(rope.text("type")?);
    let all = strength(rope, "mscale_all_dim")?;
    match all.filter(|_| kind.is_some_and(|kind| kind != "default")) {
        None => Ok(1.0),
        Some(strength) => Ok(grown(strength, Stretch::read(config, rope)?.factor)),
    }
}

/// Growth by `strength` where positions are stretched by `factor`.
fn grown(strength: f64, factor: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * strength * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// Reads a strength, of which zero means none.
///
/// # Errors
/// [`ModelConfigError`]: the value is not a number, or below zero.
pub(in crate::families) fn strength(
    rope: &Raw,
    key: &str,
) -> Result<Option<f64>, ModelConfigError> {
    match rope.get(key) {
        Some(value) if *value == 0 || *value == 0.0 => Ok(None),
        _ => rope.number(key),
    }
}

//! Parameters of LongRoPE (Ding et al., arXiv:2402.13753).

use lockstep_types::{LongRope, ModelConfigError};

use super::stretch::Stretch;
use crate::raw::Raw;

/// Names of the rotation: the usual one, and that of the first Phi-3 files.
const NAMES: [&str; 2] = ["longrope", "su"];

/// Keys that are read, or say nothing more.
const KNOWN: [&str; 9] = [
    "attention_factor",
    "factor",
    "long_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "type",
];

/// Reads the parameters of `rope`, as transformers does; `None` if it is another rotation. Until a
/// shorter length is served, texts are as long as positions allow.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing, damaged or not known.
pub(super) fn read(config: &Raw, rope: &Raw) -> Result<Option<LongRope>, ModelConfigError> {
    let kind = rope.text("rope_type")?.or(rope.text("type")?);
    if !kind.is_some_and(|kind| NAMES.contains(&kind)) {
        return Ok(None);
    }
    if let Some(key) = rope.keys().find(|key| !KNOWN.contains(key)) {
        return Err(rope.unsupported(key, "LongRoPE has no such parameter; remove the key"));
    }
    let Stretch {
        longest,
        original: original_max_position,
        factor,
    } = Stretch::read(config, rope)?;
    let grown = || match factor > 1.0 {
        true => (1.0 + factor.ln() / (original_max_position as f64).ln()).sqrt(),
        false => 1.0,
    };
    let list = |key: &str| {
        rope.numbers(key)?
            .ok_or_else(|| rope.wrong(key, "is missing"))
    };
    Ok(Some(LongRope {
        short: list("short_factor")?,
        long: list("long_factor")?,
        original_max_position,
        attention_factor: rope.number("attention_factor")?.unwrap_or_else(grown),
        served: longest,
    }))
}

/// Checks that there is a divisor for each pair of `columns` rotated columns.
///
/// # Errors
/// [`ModelConfigError`]: a list has another length.
pub(in crate::families) fn fits(
    config: &Raw,
    long: &LongRope,
    columns: usize,
) -> Result<(), ModelConfigError> {
    for (key, list) in [("short_factor", &long.short), ("long_factor", &long.long)] {
        if list.len() != columns / 2 {
            let message = format!(
                "has {} numbers, and {columns} columns of a head are rotated, in {} pairs",
                list.len(),
                columns / 2
            );
            return Err(config.wrong(key, message));
        }
    }
    Ok(())
}

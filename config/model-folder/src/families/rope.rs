//! Rotary parameters in the spellings of transformers 4 and 5.

use lockstep_types::{ModelConfigError, RopeConfig, RopeScaling};

use crate::raw::Raw;

/// Base of the frequencies if a model names none, as in transformers.
const DEFAULT_THETA: f64 = 10_000.0;

/// Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).
pub(super) fn read(config: &Raw) -> Result<RopeConfig, ModelConfigError> {
    if config
        .number("partial_rotary_factor")?
        .is_some_and(|factor| factor != 1.0)
    {
        return Err(config.unsupported("partial_rotary_factor", "the whole head must be rotated"));
    }
    let key = if config.get("rope_parameters").is_some() {
        "rope_parameters"
    } else {
        "rope_scaling"
    };
    let Some(rope) = config.object(key)? else {
        let theta = config.number("rope_theta")?.unwrap_or(DEFAULT_THETA);
        return Ok(RopeConfig {
            theta,
            scaling: RopeScaling::Default,
        });
    };
    if rope
        .number("partial_rotary_factor")?
        .is_some_and(|factor| factor != 1.0)
    {
        return Err(rope.unsupported("partial_rotary_factor", "the whole head must be rotated"));
    }
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => config.number("rope_theta")?.unwrap_or(DEFAULT_THETA),
    };
    Ok(RopeConfig {
        theta,
        scaling: scaling(config, &rope)?,
    })
}

fn scaling(config: &Raw, rope: &Raw) -> Result<RopeScaling, ModelConfigError> {
    let key = if rope.get("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let number = |key: &str| {
        rope.number(key)?
            .ok_or_else(|| rope.wrong(key, "is missing"))
    };
    match rope.text(key)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear {
            factor: number("factor")?,
        }),
        "llama3" => {
            const ORIGINAL: &str = "original_max_position_embeddings";
            let original_max_position = match rope.size(ORIGINAL)? {
                Some(size) => size,
                None => config.required(ORIGINAL)?,
            };
            let low_freq_factor = number("low_freq_factor")?;
            let high_freq_factor = number("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                let message = "must be larger than low_freq_factor";
                return Err(rope.wrong("high_freq_factor", message));
            }
            let factor = number("factor")?;
            Ok(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            })
        }
        _ => Err(rope.unsupported(
            key,
            "served are default, linear and llama3; where the model card allows it, remove \
             the rope scaling from config.json and stay within the original context length",
        )),
    }
}

//! Rotary parameters in the spellings of transformers 4 and 5.

mod long;
mod stretch;
mod typed;
mod yarn;

use lockstep_types::{ModelConfigError, RopeConfig, RopeScaling};

use super::layer_types::LayerType;
use crate::raw::Raw;
pub(super) use long::fits;
use stretch::ORIGINAL;
pub(super) use typed::{Bases, by_type};
pub(super) use yarn::strength;

/// Returns the growth `m` of queries and of keys of latent attention, by which scores grow without
/// the columns growing: `mscale_all_dim` of YaRN.
///
/// # Errors
/// [`ModelConfigError`]: a key is damaged.
pub(super) fn growth(config: &Raw) -> Result<f64, ModelConfigError> {
    match parameters(config, LayerType::Full)? {
        Some(rope) => yarn::growth_of_all(config, &rope),
        None => Ok(1.0),
    }
}

/// Base of the frequencies if a model names none, as in transformers.
const DEFAULT_THETA: f64 = 10_000.0;

/// Key of transformers 5.
const PARAMETERS: &str = "rope_parameters";
/// Key for the part of each head that is rotated.
const FACTOR: &str = "partial_rotary_factor";
/// Key of transformers 4.
const SCALING: &str = "rope_scaling";

/// Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4), for layers
/// of the kind `layers`. In `rope_parameters`, kinds of layers may have parameters of their
/// own.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for a rotation that is not served.
pub(super) fn read(config: &Raw, layers: LayerType) -> Result<RopeConfig, ModelConfigError> {
    whole(config)?;
    if let Some(rope) = parameters(config, layers)? {
        whole(&rope)?;
    }
    frequencies(config, layers)
}

/// Reads what [`read`] reads, in a family in which the first columns of each head may be the only
/// ones that are rotated: `partial_rotary_factor` of `head_dim`, or `rotary_dim`.
///
/// # Errors
/// The errors of [`read`]; a part that is no number of pairs, or scaling of such a part other
/// than YaRN's.
pub(super) fn read_partial(
    config: &Raw,
    layers: LayerType,
    head_dim: usize,
) -> Result<RopeConfig, ModelConfigError> {
    const COLUMNS: &str = "rotary_dim";
    let own = parameters(config, layers)?;
    let own = own.as_ref().filter(|own| own.get(FACTOR).is_some());
    let object = own.unwrap_or(config);
    let part = |factor: f64| (head_dim as f64 * factor) as usize;
    let (key, columns) = match (object.number(FACTOR)?, config.size(COLUMNS)?) {
        (Some(factor), _) => (FACTOR, part(factor)),
        (None, Some(columns)) => (COLUMNS, columns),
        (None, None) => (FACTOR, head_dim),
    };
    if columns == 0 || columns > head_dim || !columns.is_multiple_of(2) {
        let message = format!("rotates {columns} of a head's {head_dim} columns");
        return Err(object.wrong(key, message));
    }
    let rope = frequencies(config, layers)?;
    let rotated = (columns < head_dim).then_some(columns);
    let served = matches!(
        rope.scaling,
        RopeScaling::Default | RopeScaling::Yarn { .. }
    );
    if rotated.is_some() && !served {
        let remedy = "a part of a head is rotated with plain frequencies or YaRN's alone";
        return Err(object.unsupported(key, remedy));
    }
    Ok(RopeConfig { rotated, ..rope })
}

/// Reads the frequencies of the rotation.
fn frequencies(config: &Raw, layers: LayerType) -> Result<RopeConfig, ModelConfigError> {
    let Some(rope) = parameters(config, layers)? else {
        let theta = config.number("rope_theta")?.unwrap_or(DEFAULT_THETA);
        return Ok(RopeConfig::plain(theta));
    };
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => config.number("rope_theta")?.unwrap_or(DEFAULT_THETA),
    };
    let scaling = scaling(config, &rope)?;
    agrees(config, scaling)?;
    Ok(RopeConfig {
        scaling,
        long: long::read(config, &rope)?,
        ..RopeConfig::plain(theta)
    })
}

/// The object with the parameters, if there is one.
fn parameters(config: &Raw, layers: LayerType) -> Result<Option<Raw>, ModelConfigError> {
    let said = |all: &Raw| all.keys().next().is_some();
    let Some(all) = config.object(PARAMETERS)?.filter(said) else {
        return config.object(SCALING);
    };
    let kinds = [LayerType::Full, LayerType::Sliding];
    if !kinds.iter().any(|kind| all.get(kind.name()).is_some()) {
        return Ok(Some(all));
    }
    match all.object(layers.name())? {
        Some(own) => Ok(Some(own)),
        None => Err(all.wrong(layers.name(), "is missing")),
    }
}

/// Checks that the key of transformers 4, if a file has it too, asks for the same `found`
/// scaling. transformers 5 would let it win.
fn agrees(config: &Raw, found: RopeScaling) -> Result<(), ModelConfigError> {
    let Some(older) = config.object(SCALING)? else {
        return Ok(());
    };
    if older.keys().next().is_none() || scaling(config, &older)? == found {
        return Ok(());
    }
    let message = format!("and `{PARAMETERS}` ask for different rotations; remove one of them");
    Err(config.wrong(SCALING, message))
}

/// Reads how many pairs rotate at the frequencies of a whole head, as in Gemma 4.
fn proportional(config: &Raw, rope: &Raw) -> Result<RopeScaling, ModelConfigError> {
    if rope.number("factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(rope.unsupported("factor", "it must be 1 in a proportional rotation"));
    }
    let part = rope.number(FACTOR)?.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&part) {
        return Err(rope.wrong(FACTOR, format!("is {part}, no part of a head")));
    }
    Ok(RopeScaling::Proportional {
        pairs: (part * config.required("head_dim")? as f64 / 2.0) as usize,
    })
}

/// Checks that the whole head is rotated.
fn whole(object: &Raw) -> Result<(), ModelConfigError> {
    match object.number(FACTOR)? {
        _ if object.text("rope_type")? == Some("proportional") => Ok(()),
        Some(factor) if factor != 1.0 => {
            Err(object.unsupported(FACTOR, "the whole head must be rotated"))
        }
        _ => Ok(()),
    }
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
        // A token of text has one position on all axes, which makes each pair's angle plain.
        "default" | "mrope" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear {
            factor: number("factor")?,
        }),
        "llama3" => {
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
        // Its divisors belong to single pairs: see [`long`].
        "longrope" | "su" => Ok(RopeScaling::Default),
        "yarn" => yarn::read(config, rope),
        "proportional" => proportional(config, rope),
        _ => Err(rope.unsupported(
            key,
            "served are default, linear, llama3, longrope, proportional and yarn; where the model card allows it, remove \
             the rope scaling from config.json and stay within the original context length",
        )),
    }
}

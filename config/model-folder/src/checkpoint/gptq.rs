//! Checkpoints of GPTQ's tools: GPTQModel, AutoGPTQ, and AutoRound where it writes their format.

use lockstep_types::{CheckpointFormat, IntegerLayout, ModelConfigError};

use super::integers::{Kind, Kinds, bits, changed, group, refuse_unknown, refuse_unlike};
use crate::raw::Raw;

/// Keys that are read, or change no weight. Which modules are floats, the tensors say.
const KNOWN: [&str; 13] = [
    "backend",
    "bits",
    "checkpoint_format",
    "data_type",
    "desc_act",
    DYNAMIC,
    "extra_config",
    "format",
    "group_size",
    "method",
    "pack_dtype",
    "quant_method",
    "sym",
];
const DYNAMIC: &str = "dynamic";

/// Reads a `quantization_config` of this method, or the `quantize_config.json` beside it.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn read(config: &Raw) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unknown(config, &KNOWN)?;
    refuse_unlike(config, "method", "gptq")?;
    let mut less_one = None;
    for key in ["checkpoint_format", "format"] {
        let own = match config.text(key)? {
            None => continue,
            Some("gptq") => true,
            Some("gptq_v2") => false,
            Some(_) => return Err(config.unsupported(key, "served are gptq and gptq_v2")),
        };
        if less_one.is_some_and(|other| other != own) {
            return Err(config.unsupported(key, "`checkpoint_format` says otherwise"));
        }
        less_one = Some(own);
    }
    // Older tools wrote nothing but the first version.
    let less_one = less_one.unwrap_or(true);
    read_kinds(config, IntegerLayout::Gptq { less_one })
}

/// Reads the kinds of integers of a configuration of GPTQ's keys.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn read_kinds(
    config: &Raw,
    layout: IntegerLayout,
) -> Result<CheckpointFormat, ModelConfigError> {
    refuse_unlike(config, "pack_dtype", "int32")?;
    refuse_unlike(config, "data_type", "int")?;
    config.flag("lm_head", false)?;
    let missing = |key: &str| config.wrong(key, "is missing");
    let plain = Kind {
        bits: bits(config, "bits")?.ok_or_else(|| missing("bits"))?,
        group: group(config, "group_size")?.ok_or_else(|| missing("group_size"))?,
        // The zero points in the files are right in any case.
        zeros: !config.flag("sym", false)?,
        scattered: config.flag("desc_act", false)?,
    };
    let mut kinds = Kinds::default();
    kinds.add(plain);
    for list in [DYNAMIC, "extra_config"] {
        let Some(rules) = config.object(list)? else {
            continue;
        };
        for pattern in rules.keys() {
            let Some(rule) = rules.object(pattern)? else {
                continue;
            };
            // These modules, and those with more bits, are floats.
            let floats =
                pattern.starts_with("-:") || rule.count("bits")?.is_some_and(|bits| bits >= 16);
            if !floats {
                kinds.add(changed(&rule, plain)?);
            }
        }
    }
    let found = kinds.checkpoint(layout, None);
    found.ok_or_else(|| missing("bits"))
}

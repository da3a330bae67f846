//! The file of `--speculative-adaptive-config`, in SGLang's words.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::CANDIDATES;
use super::decimal::{ONE, millionths};

/// Keys of a batch size. They may also stand outside, for all batches.
pub(super) const OF_A_SLOT: [&str; 7] = [
    CANDIDATES,
    "ema_alpha",
    "update_interval",
    "warmup_batches",
    "up_hysteresis",
    "down_hysteresis",
    "ceiling_coeff",
];

/// Keys that stand only outside of batch sizes.
const OUTSIDE: &str = "strategy, window_size, switch_hysteresis, batch sizes such as \"8\"";

/// Keys for SGLang's measurements at start, and their allowed values, which are SGLang's
/// defaults. Here every depth is measured, whatever the keys say.
const PROFILE: [(&str, &[Option<u64>]); 5] = [
    ("profile_run_batch_sizes", &[None]),
    ("max_profile_run_batch_size", &[None]),
    ("profile_run_n_warmup", &[Some(5)]),
    ("profile_run_n_measure", &[Some(10)]),
    ("profile_run_seq_len", &[None, Some(128)]),
];

/// Contents of the file; `None` = not in the file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AdaptiveFile {
    pub(super) strategy: Option<String>,
    pub(super) window_size: Option<u32>,
    pub(super) switch_hysteresis: Option<u32>,
    /// Settings for all batches. The first form of the file has everything here.
    pub(super) all: Tuning,
    /// Settings of batch sizes, by the smallest batch that they are for.
    pub(super) slots: BTreeMap<u32, Tuning>,
    /// Keys that only some policies obey.
    pub(super) keys: Vec<String>,
}

/// Settings for all batches, or for those of one size.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Tuning {
    /// Ascending and different.
    pub(super) candidates: Option<Vec<u32>>,
    pub(super) ema_alpha: Option<u32>,
    pub(super) update_interval: Option<u32>,
    pub(super) warmup_batches: Option<u32>,
    pub(super) up_hysteresis: Option<i32>,
    pub(super) down_hysteresis: Option<i32>,
    pub(super) ceiling_coeff: Option<u32>,
}

impl AdaptiveFile {
    /// # Errors
    /// Problem and remedy in whole sentences.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text)
            .map_err(|error| format!("this is no JSON: {error}. Correct it there."))?;
        let Value::Object(entries) = json else {
            return Err("this is no JSON object. Put the keys into braces.".into());
        };
        let mut file = Self::default();
        for (key, value) in &entries {
            file.take(key, value)?;
        }
        let flat = file.all.candidates.is_some();
        if let (true, Some(from)) = (flat, file.slots.keys().next()) {
            return Err(format!(
                "\"{CANDIDATES}\" stands beside the batch size \"{from}\", which has its own. \
                 Leave one of them out."
            ));
        }
        Ok(file)
    }

    fn take(&mut self, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "strategy" => {
                let name = value.as_str();
                self.strategy = Some(name.ok_or_else(|| wrong(key, value, "a name"))?.to_owned());
            }
            "window_size" => self.window_size = Some(whole(key, value, 1)?),
            "switch_hysteresis" => self.switch_hysteresis = Some(share(key, value, i64::MAX)?),
            _ if is_size(key) => return self.take_slot(key, value),
            _ => {
                if let Some((_, passes)) = PROFILE.iter().find(|(known, _)| *known == key) {
                    return measured_anyway(key, value, passes);
                }
                if !self.all.take(key, value)? {
                    let known = format!("{OUTSIDE}, {}", OF_A_SLOT.join(", "));
                    return Err(unknown(key, &known));
                }
            }
        }
        self.note(key);
        Ok(())
    }

    fn take_slot(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let of_slot = |message: String| format!("in \"{key}\", {message}");
        let entries = value
            .as_object()
            .ok_or_else(|| wrong(key, value, "an object with candidate_steps"))?;
        let slot = Tuning::parse(entries).map_err(of_slot)?;
        // SGLang uses the first size's settings for smaller batches.
        let from = key.parse::<u32>().unwrap_or(1).max(1);
        if self.slots.insert(from, slot).is_some() {
            return Err(format!(
                "\"{key}\" is a batch size that stands there already. Leave one of them out."
            ));
        }
        for key in entries.keys() {
            self.note(key);
        }
        Ok(())
    }

    fn note(&mut self, key: &str) {
        if !["strategy", CANDIDATES].contains(&key) && !self.keys.iter().any(|known| known == key) {
            self.keys.push(key.to_owned());
        }
    }
}

impl Tuning {
    fn parse(entries: &Map<String, Value>) -> Result<Self, String> {
        let mut slot = Self::default();
        for (key, value) in entries {
            if !slot.take(key, value)? {
                return Err(unknown(key, &OF_A_SLOT.join(", ")));
            }
        }
        match slot.candidates {
            Some(_) => Ok(slot),
            None => Err(format!(
                "there are no \"{CANDIDATES}\". Name some, such as [1, 3, 7]."
            )),
        }
    }

    /// Reads a key's value; `false` for an unknown key.
    fn take(&mut self, key: &str, value: &Value) -> Result<bool, String> {
        match key {
            CANDIDATES => self.candidates = Some(candidates(value)?),
            "ema_alpha" => self.ema_alpha = Some(share(key, value, ONE)?),
            "update_interval" => self.update_interval = Some(whole(key, value, 1)?),
            "warmup_batches" => self.warmup_batches = Some(whole(key, value, 0)?),
            "up_hysteresis" => self.up_hysteresis = Some(signed(key, value)?),
            "down_hysteresis" => self.down_hysteresis = Some(signed(key, value)?),
            // SGLang has no ceiling if this is 0 or less.
            "ceiling_coeff" => self.ceiling_coeff = Some(signed(key, value)?.max(0).unsigned_abs()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn candidates(value: &Value) -> Result<Vec<u32>, String> {
    let wrong = || {
        wrong(
            CANDIDATES,
            value,
            "a list of whole numbers, such as [1, 3, 7]",
        )
    };
    let list = value.as_array().filter(|list| !list.is_empty());
    let depth = |value: &Value| value.as_u64().and_then(|depth| u32::try_from(depth).ok());
    let depths = list.ok_or_else(wrong)?.iter().map(depth);
    let mut depths = depths.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    depths.sort_unstable();
    depths.dedup();
    Ok(depths)
}

/// A whole number of at least `least`.
fn whole(key: &str, value: &Value, least: u32) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| *number >= least)
        .ok_or_else(|| wrong(key, value, &format!("a whole number, at least {least}")))
}

/// A number of millionths from 0 to `most`.
fn share(key: &str, value: &Value, most: i64) -> Result<u32, String> {
    let bound = match most {
        ONE => "0 to 1",
        _ => "0 or more",
    };
    millionths(value)
        .filter(|share| *share <= most)
        .and_then(|share| u32::try_from(share).ok())
        .ok_or_else(|| wrong(key, value, &format!("{bound}, with at most six decimals")))
}

/// A number of millionths of either sign.
fn signed(key: &str, value: &Value) -> Result<i32, String> {
    millionths(value)
        .and_then(|millionths| i32::try_from(millionths).ok())
        .ok_or_else(|| wrong(key, value, "-2147 to 2147, with at most six decimals"))
}

fn measured_anyway(key: &str, value: &Value, passes: &[Option<u64>]) -> Result<(), String> {
    let passes = passes.iter().any(|pass| match pass {
        None => value.is_null(),
        Some(number) => value.as_u64() == Some(*number),
    });
    match passes {
        true => Ok(()),
        false => Err(format!(
            "\"{key}\" is {value}, but what is measured at start is not chosen here. \
             Leave \"{key}\" out."
        )),
    }
}

fn wrong(key: &str, value: &Value, must: &str) -> String {
    format!("\"{key}\" is {value}, and must be {must}. Correct it, or leave it out.")
}

fn unknown(key: &str, known: &str) -> String {
    format!("\"{key}\" is unknown. Known are {known}.")
}

/// Returns true if the key is a batch size.
fn is_size(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_digit()) && key.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests;

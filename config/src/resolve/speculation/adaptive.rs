//! Adaptive depth: the policy, its candidates, and the other settings of its file.

use std::path::Path;

use lockstep_adaptive::{AdaptiveConfig, BatchSlot, POSITIONS, Policies, PolicyFactory, Tier};
use lockstep_types::{Algorithm, Algorithms, ConfigError, DraftShape};

use super::{ADAPTIVE, ALGORITHM, shape};
use crate::args::SpeculationArgs;
use file::{AdaptiveFile, Tuning};

mod decimal;
mod file;

pub(super) const CONFIG: &str = "--speculative-adaptive-config";
/// Key of the file for depths.
pub(super) const CANDIDATES: &str = "candidate_steps";

/// Policy by default.
const DEFAULT_POLICY: &str = "goodput";
/// SGLang's default policy, for files that were written for SGLang.
const SGLANG_POLICY: &str = "ema";

/// The reason why the depth adapts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// An option asks for it.
    Given,
    /// Attention is data-parallel, and the algorithm can adapt.
    ByDefault,
}

/// The reason why the depth adapts; `None` if it does not.
pub(super) fn wanted(
    given: &SpeculationArgs,
    algorithm: &dyn Algorithm,
    dp_attention: bool,
) -> Result<Option<Wanted>, ConfigError> {
    let wanted = match given.speculative_adaptive {
        Some(true) => Some(Wanted::Given),
        None if dp_attention && algorithm.capabilities().adaptive => Some(Wanted::ByDefault),
        Some(false) | None => None,
    };
    match (&given.speculative_adaptive_config, wanted) {
        (Some(_), None) => Err(file_alone(given.speculative_adaptive)),
        _ => Ok(wanted),
    }
}

/// Shapes that the candidates go up to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shapes {
    /// The shape that the other options give.
    pub first: DraftShape,
    /// The algorithm's own shape.
    pub default: DraftShape,
}

/// The settings of adaptive depth, and the shape of the deepest tier.
pub(super) fn resolve(
    wanted: Wanted,
    given: &SpeculationArgs,
    algorithm: &dyn Algorithm,
    Shapes { first, default }: Shapes,
    known: &Algorithms,
) -> Result<(AdaptiveConfig, DraftShape), ConfigError> {
    if !algorithm.capabilities().adaptive {
        return Err(can_not(algorithm, known));
    }
    let source = Source {
        path: given.speculative_adaptive_config.as_deref(),
        steps: first.num_steps,
        wanted,
    };
    let file = source.read()?;
    let policy = policy(&file, known.policies()).map_err(|why| source.wrong(&why))?;
    let deepest = first.num_steps.max(default.num_steps.min(POSITIONS));
    let mut config = AdaptiveConfig::new(policy.name(), 0, Vec::new(), Vec::new());
    config.slots = slots(&file, policy, u32::try_from(deepest).unwrap_or(u32::MAX));
    let depths = source.depths(&config.slots)?;
    config.initial_depth = nearest(&config.slots, first.num_steps);
    let deepest = shape::at(first, depths.last().copied().unwrap_or(0) as usize)?;
    let tier = |depth: u32| {
        let tokens = deepest.draft_tokens_at(depth as usize);
        let tokens = algorithm.tokens_per_request_for_verify(tokens, false);
        Tier {
            depth,
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        }
    };
    config.tiers = depths.into_iter().map(tier).collect();
    tune(&mut config, &file).map_err(|why| source.wrong(&why))?;
    policy.check(&config).map_err(|why| source.wrong(&why))?;
    Ok((config, deepest))
}

/// Source of the candidates.
struct Source<'a> {
    /// The file; `None` = options alone.
    path: Option<&'a Path>,
    /// The depth that the options give.
    steps: usize,
    wanted: Wanted,
}

impl Source<'_> {
    fn read(&self) -> Result<AdaptiveFile, ConfigError> {
        let Some(path) = self.path else {
            return Ok(AdaptiveFile::default());
        };
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| self.wrong(&format!("{error}. Name a file with JSON.")))?;
        AdaptiveFile::parse(&text).map_err(|why| self.wrong(&why))
    }

    /// The error for `message`, which has two sentences: the problem and the remedy.
    fn wrong(&self, message: &str) -> ConfigError {
        if let Some(path) = self.path {
            let message = format!("{}.", message.trim_end_matches('.'));
            return ConfigError::file(CONFIG, path, message);
        }
        let (why, remedy) = message.split_once(". ").unwrap_or((message, ""));
        let steps = format!("{} {}", shape::STEPS, self.steps);
        let remedy = remedy.trim_end_matches('.');
        match self.wanted {
            Wanted::Given => ConfigError::conflict(ADAPTIVE, steps, why, remedy),
            Wanted::ByDefault => ConfigError::conflict(
                "--enable-dp-attention, which lets the depth adapt,",
                steps,
                why,
                format!("{remedy}; or give {ADAPTIVE}=false"),
            ),
        }
    }

    /// Every depth of all slots, ascending.
    fn depths(&self, slots: &[BatchSlot]) -> Result<Vec<u32>, ConfigError> {
        let depths = slots.iter().flat_map(|slot| slot.depths.iter().copied());
        let mut depths: Vec<_> = depths.collect();
        depths.sort_unstable();
        depths.dedup();
        let names = match self.path {
            Some(_) => CANDIDATES,
            None => shape::STEPS,
        };
        match depths.last() {
            Some(most) if *most as usize > POSITIONS => Err(self.wrong(&format!(
                "a depth that adapts is at most {POSITIONS}, not {most}. Give such {names}."
            ))),
            Some(1..) => Ok(depths),
            _ => Err(self.wrong(&format!(
                "with no candidate above 0 nothing is ever drafted. Give other {names}, \
                 or leave {ALGORITHM} out."
            ))),
        }
    }
}

/// The error for a file although the depth does not adapt.
fn file_alone(given: Option<bool>) -> ConfigError {
    ConfigError::conflict(
        CONFIG,
        match given {
            Some(_) => format!("{ADAPTIVE}=false"),
            None => format!("no {ADAPTIVE}"),
        },
        "the depth does not adapt without it",
        format!("Give {ADAPTIVE} too, or leave the file out"),
    )
}

fn can_not(algorithm: &dyn Algorithm, known: &Algorithms) -> ConfigError {
    let others = known.iter().filter(|other| other.capabilities().adaptive);
    let others: Vec<_> = others.map(|other| other.name()).collect();
    let or = match others.as_slice() {
        [] => String::new(),
        others => format!(
            ", or give an algorithm whose depth can: {}",
            others.join(", ")
        ),
    };
    ConfigError::conflict(
        format!("{ALGORITHM} {}", algorithm.name()),
        ADAPTIVE,
        "its depth can't change from step to step",
        format!("Leave {ADAPTIVE} out{or}"),
    )
}

/// The policy that decides. A file without a policy's name counts as SGLang's default policy if
/// it has keys that only that policy obeys.
fn policy<'a>(file: &AdaptiveFile, known: &'a Policies) -> Result<&'a dyn PolicyFactory, String> {
    let find = |name: &str| known.find(name).ok_or_else(|| unknown(name, known));
    let foreign = |policy: &dyn PolicyFactory| {
        let mut keys = file.keys.iter();
        keys.find(|key| !policy.obeys(key)).cloned()
    };
    let mut policy = find(file.strategy.as_deref().unwrap_or(DEFAULT_POLICY))?;
    if file.strategy.is_none() && foreign(policy.as_ref()).is_some() {
        policy = find(SGLANG_POLICY)?;
    }
    let Some(key) = foreign(policy.as_ref()) else {
        return Ok(policy.as_ref());
    };
    let obeying = known.iter().filter(|other| other.obeys(&key));
    let names: Vec<_> = obeying.map(|other| other.name()).collect();
    let name = policy.name();
    Err(format!(
        "\"{key}\" means nothing to the strategy \"{name}\". Leave \"{key}\" out, \
         or give a \"strategy\" that obeys it: {}.",
        names.join(", ")
    ))
}

fn unknown(name: &str, known: &Policies) -> String {
    let mut names = Vec::new();
    for policy in known.iter() {
        let summary = policy.summary().trim_end_matches('.');
        names.push(format!("{}: {summary}", policy.name()));
    }
    format!(
        "this program knows no strategy \"{name}\". Known are {}.",
        names.join("; ")
    )
}

/// Candidates by batch size, with their thresholds. A batch size's own settings come first,
/// then those for all batches, then the policy's own table.
fn slots(file: &AdaptiveFile, policy: &dyn PolicyFactory, deepest: u32) -> Vec<BatchSlot> {
    let mut slots = match &file.all.candidates {
        Some(depths) => vec![BatchSlot::new(1, depths.clone())],
        None if file.slots.is_empty() => policy.default_slots(deepest),
        None => Vec::new(),
    };
    for slot in &mut slots {
        file.all.set_thresholds(slot);
    }
    slots.extend(file.slots.iter().map(|(from, tuning)| {
        let depths = tuning.candidates.clone().unwrap_or_default();
        let mut slot = BatchSlot::new(*from, depths);
        file.all.set_thresholds(&mut slot);
        tuning.set_thresholds(&mut slot);
        slot
    }));
    // Batches below the first size have the first size's settings.
    if let Some(first) = slots.first_mut() {
        first.from = 1;
    }
    slots
}

/// The candidate of the smallest batches that is nearest to `steps`. Of two, the larger one.
/// The smallest batches count, since most servers begin with few requests.
fn nearest(slots: &[BatchSlot], steps: usize) -> u32 {
    let depths = slots.first().map_or(&[][..], |slot| &slot.depths);
    let distance = |depth: &u32| (*depth as usize).abs_diff(steps);
    let nearest = depths.iter().rev().min_by_key(|depth| distance(depth));
    nearest.copied().unwrap_or(0)
}

/// Reads numbers that hold for all batches. SGLang lets each batch size have its own; nobody is
/// known to use that.
fn tune(config: &mut AdaptiveConfig, file: &AdaptiveFile) -> Result<(), String> {
    type Field = fn(&Tuning) -> Option<u32>;
    let shared: [(&str, Field, &mut u32); 3] = [
        ("ema_alpha", |of| of.ema_alpha, &mut config.ema_alpha),
        (
            "update_interval",
            |of| of.update_interval,
            &mut config.update_interval,
        ),
        (
            "warmup_batches",
            |of| of.warmup_batches,
            &mut config.warmup_batches,
        ),
    ];
    for (key, field, value) in shared {
        *value = field(&file.all).unwrap_or(*value);
        let mut of_slots = file
            .slots
            .values()
            .map(|slot| field(slot).unwrap_or(*value));
        let Some(first) = of_slots.next() else {
            continue;
        };
        if of_slots.any(|other| other != first) {
            return Err(format!(
                "\"{key}\" differs between batch sizes. Give one for all of them, outside."
            ));
        }
        *value = first;
    }
    config.window_size = file.window_size.unwrap_or(config.window_size);
    config.switch_hysteresis = file.switch_hysteresis.unwrap_or(config.switch_hysteresis);
    Ok(())
}

impl Tuning {
    fn set_thresholds(&self, slot: &mut BatchSlot) {
        slot.up_hysteresis = self.up_hysteresis.unwrap_or(slot.up_hysteresis);
        slot.down_hysteresis = self.down_hysteresis.unwrap_or(slot.down_hysteresis);
        slot.ceiling_coeff = self.ceiling_coeff.unwrap_or(slot.ceiling_coeff);
    }
}

#[cfg(test)]
mod tests;

//! The number of recurrent states of a DP rank: one for each request that may run at once, and
//! those of the prefix cache.

use lockstep_types::ConfigError;

use super::{Place, Sizing, room::gib};
use crate::args::MemoryArgs;

/// Bytes of states over the bytes of the cache of positions, as SGLang's default.
const RATIO: f64 = 0.9;
/// Tokens in the cache for each cached state, at least. More states would be of little use.
const TOKENS_PER_STATE: usize = 256;

/// Options about the number of states, if they are given.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateOptions {
    /// Value of `--max-mamba-cache-size`.
    pub(crate) max_mamba_cache_size: Option<usize>,
    /// Value of `--mamba-full-memory-ratio`.
    pub(crate) mamba_full_memory_ratio: Option<f64>,
}

impl StateOptions {
    /// Returns the options among those about memory.
    pub(crate) fn of(args: &MemoryArgs) -> Self {
        Self {
            max_mamba_cache_size: args.max_mamba_cache_size,
            mamba_full_memory_ratio: args.mamba_full_memory_ratio,
        }
    }
}

/// Returns the number of states; 0 for a model without recurrent layers.
///
/// A given `--max-mamba-cache-size` is used as it is, after a check that it fits. Otherwise states
/// and positions share the memory by `--mamba-full-memory-ratio`: the memory with the least room
/// decides. `useful` are the most tokens that running requests can have.
pub(super) fn count(
    sizing: &Sizing<'_>,
    places: &[Place],
    useful: usize,
) -> Result<usize, ConfigError> {
    let (least, asked) = (sizing.least_states(), sizing.states.max_mamba_cache_size);
    if least == 0 {
        return none(sizing.states);
    }
    let ratio = ratio(sizing)?;
    let twice = least.saturating_mul(2);
    let states = match asked {
        Some(states) if states < least => {
            return Err(ConfigError::conflict(
                format!("--max-mamba-cache-size {states}"),
                format!("{least} requests that run at once in a DP rank"),
                "each running request has a recurrent state of its own",
                format!(
                    "Give --max-mamba-cache-size {least} or more, or lower --max-running-requests"
                ),
            ));
        }
        Some(states) => states,
        None if !sizing.radix_cache => least,
        // Nodes may differ in memory, and must not differ in states. None knows what fits on all.
        None if sizing.nnodes > 1 => twice,
        None => {
            let most = twice.saturating_add(useful / TOKENS_PER_STATE);
            let share = |place: &Place| of_share(sizing, place, ratio);
            let share = places.iter().map(share).min().unwrap_or(0);
            share.clamp(least, most)
        }
    };
    let page = sizing.engine.page_size as u64;
    for place in places {
        let need = (states as u64).saturating_mul(place.state);
        let room = place.bytes.saturating_sub(place.cost.bytes(page));
        if need > room {
            let fits = usize::try_from(room / place.state.max(1)).unwrap_or(usize::MAX);
            return Err(too_many(sizing, states, fits.max(least), place));
        }
    }
    Ok(states)
}

/// Refuses the options for a model without recurrent layers.
fn none(options: StateOptions) -> Result<usize, ConfigError> {
    let number = options.max_mamba_cache_size.map(|n| n.to_string());
    let ratio = options.mamba_full_memory_ratio.map(|n| n.to_string());
    let (name, value) = match (number, ratio) {
        (None, None) => return Ok(0),
        (Some(number), _) => ("--max-mamba-cache-size", number),
        (None, Some(ratio)) => ("--mamba-full-memory-ratio", ratio),
    };
    Err(ConfigError::value(
        name,
        value,
        "the model has no recurrent layers, whose states it is about",
        "Leave it out",
    ))
}

/// Returns the states that fit into their share of a memory: what `--max-total-tokens` leaves, or
/// the share of the ratio.
fn of_share(sizing: &Sizing<'_>, place: &Place, ratio: f64) -> usize {
    let bytes = match sizing.max_total_tokens {
        Some(tokens) => place.bytes.saturating_sub(place.cost.bytes(tokens as u64)),
        None => (place.bytes as f64 * (ratio / (1.0 + ratio))) as u64,
    };
    usize::try_from(bytes / place.state.max(1)).unwrap_or(usize::MAX)
}

/// Returns the ratio by which states and positions share the memory. One that is given, and would
/// decide nothing, is refused.
fn ratio(sizing: &Sizing<'_>) -> Result<f64, ConfigError> {
    let Some(ratio) = sizing.states.mamba_full_memory_ratio else {
        return Ok(RATIO);
    };
    if !(ratio > 0.0 && ratio.is_finite()) {
        return Err(ConfigError::value(
            "--mamba-full-memory-ratio",
            ratio,
            "must be above 0",
            "Usual is 0.9",
        ));
    }
    let option = format!("--mamba-full-memory-ratio {ratio}");
    let refuse = |other: String, why: &str, remedy: &str| {
        Err(ConfigError::conflict(option.clone(), other, why, remedy))
    };
    if let Some(states) = sizing.states.max_mamba_cache_size {
        let other = format!("--max-mamba-cache-size {states}");
        return refuse(other, "both say how many states there are", "Leave one out");
    }
    if !sizing.radix_cache {
        return refuse(
            "--disable-radix-cache".to_owned(),
            "without a prefix cache there is one state for each running request",
            "Leave one out",
        );
    }
    if sizing.nnodes > 1 {
        return refuse(
            format!("--nnodes {}", sizing.nnodes),
            "nodes may differ in memory and must have equally many states, two for each running \
             request unless you say otherwise",
            "Leave the ratio out, or give --max-mamba-cache-size, the same on every node, in its \
             place",
        );
    }
    if let Some(tokens) = sizing.max_total_tokens {
        return refuse(
            format!("--max-total-tokens {tokens}"),
            "states get the memory that these tokens leave",
            "Leave one out, or give --max-mamba-cache-size in place of the ratio",
        );
    }
    Ok(ratio)
}

/// The error for more states than the `fits` that a memory has room for.
fn too_many(sizing: &Sizing<'_>, states: usize, fits: usize, place: &Place) -> ConfigError {
    let (default, on_all) = match (sizing.nnodes > 1, sizing.states.max_mamba_cache_size) {
        (false, _) => ("", ""),
        (true, None) => (
            ", two for each running request as on all of several nodes,",
            " or less, the same on every node",
        ),
        (true, Some(_)) => ("", " or less, the same on every node"),
    };
    ConfigError::Memory {
        need: format!(
            "{states} recurrent states{default} take {}",
            gib((states as u64).saturating_mul(place.state))
        ),
        have: format!(
            "beside the weights there is room for {fits} of them ({} of memory available)",
            gib(place.memory.free)
        ),
        remedy: format!(
            "Give --max-mamba-cache-size {fits}{on_all}, raise --mem-fraction-static, or lower \
             --max-running-requests"
        ),
    }
}

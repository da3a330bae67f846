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
        let options = [
            ("--max-mamba-cache-size", asked.map(|n| n.to_string())),
            (
                "--mamba-full-memory-ratio",
                sizing
                    .states
                    .mamba_full_memory_ratio
                    .map(|ratio| ratio.to_string()),
            ),
        ];
        let mut given = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        return match given.next() {
            None => Ok(0),
            Some((name, value)) => Err(ConfigError::value(
                name,
                value,
                "the model has no recurrent layers, whose states it is about",
                "Leave it out",
            )),
        };
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
        // Nodes may differ in memory, and must not differ in states.
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
            return Err(too_many(states, least, room / place.state.max(1), place));
        }
    }
    Ok(states)
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

fn ratio(sizing: &Sizing<'_>) -> Result<f64, ConfigError> {
    let ratio = sizing.states.mamba_full_memory_ratio.unwrap_or(RATIO);
    if ratio > 0.0 && ratio.is_finite() {
        return Ok(ratio);
    }
    Err(ConfigError::value(
        "--mamba-full-memory-ratio",
        ratio,
        "must be above 0",
        "Usual is 0.9",
    ))
}

fn too_many(states: usize, least: usize, fits: u64, place: &Place) -> ConfigError {
    ConfigError::Memory {
        need: format!(
            "{states} recurrent states take {}",
            gib((states as u64).saturating_mul(place.state))
        ),
        have: format!(
            "beside the weights there is room for {fits} of them ({} of memory available)",
            gib(place.memory.free)
        ),
        remedy: format!(
            "Give --max-mamba-cache-size {}, raise --mem-fraction-static, or lower \
             --max-running-requests",
            usize::try_from(fits).unwrap_or(usize::MAX).max(least)
        ),
    }
}

//! The memory that weights and caches share, and the room that is left in it for caches.

use lockstep_types::{ConfigError, DeviceRoom};

use super::{NodeMemory, Place, Sizing, cost::TokenCost};
use crate::Hardware;

/// The memory that weights and cache share, in bytes.
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) free: u64,
    /// Name of the memory's owner if it is not the host, such as "GPU 0".
    of: Option<String>,
}

impl Memory {
    /// Memory of the host.
    pub(super) fn of_host(hardware: &Hardware) -> Self {
        Self {
            total: hardware.total_memory,
            free: hardware.available_memory,
            of: None,
        }
    }

    /// Memory of a device.
    pub(super) fn of_device(number: usize, room: DeviceRoom) -> Self {
        Self {
            total: room.total,
            free: room.free,
            of: Some(format!("GPU {number}")),
        }
    }

    /// Advice for making room, beside options.
    pub(super) fn remedy(&self) -> String {
        match &self.of {
            Some(gpu) => format!("Use a smaller model, or free memory of {gpu}"),
            None => "Use a smaller model or more nodes, free memory".to_owned(),
        }
    }
}

/// Bytes for the cache.
pub(super) fn room_for_cache(
    node: &NodeMemory,
    sizing: &Sizing<'_>,
    memory: &Memory,
) -> Result<u64, ConfigError> {
    let rest = (memory.total as f64 * (1.0 - sizing.mem_fraction_static)) as u64;
    let NodeMemory {
        drafts,
        activations,
        ..
    } = *node;
    // The memory that stays free has to hold the activations, however much was asked for.
    let kept = rest.max(activations);
    let budget = memory.free.saturating_sub(kept);
    let weights = node.weights.saturating_add(drafts);
    let (held, fewer) = match sizing.engine.graphs.is_empty() {
        true => ("activations", ""),
        false => ("activations and graphs", ", or --cuda-graph-max-bs"),
    };
    let (exchange, host) = match node.exchange {
        0 => (String::new(), ""),
        bytes => (
            format!(", {} of it for what ranks exchange by", gib(bytes)),
            ", or give --collective-backend host",
        ),
    };
    let slots = sizing.least_states() as u64;
    let states = slots.saturating_mul(node.per_state);
    let page = TokenCost::of(node, sizing).bytes(sizing.engine.page_size as u64);
    let least = page.saturating_add(states);
    let (of_states, fewer_requests) = match states {
        0 => (String::new(), ""),
        bytes => (
            format!(", {slots} recurrent states {}", gib(bytes)),
            ", or --max-running-requests",
        ),
    };
    budget
        .checked_sub(weights)
        .filter(|room| *room >= least)
        .ok_or_else(|| ConfigError::Memory {
            need: match drafts {
                0 => format!("the weights take {}{of_states}", gib(weights)),
                drafts => format!(
                    "the weights take {}, {} of it for drafts{of_states}",
                    gib(weights),
                    gib(drafts)
                ),
            },
            have: format!(
                "--mem-fraction-static {} of {}, and {held} of {}{exchange}, leave {} of the {} available",
                sizing.mem_fraction_static,
                gib(memory.total),
                gib(activations),
                gib(budget),
                gib(memory.free),
            ),
            remedy: format!(
                "{}, raise --mem-fraction-static, or lower --chunked-prefill-size\
                 {fewer_requests}{fewer}{host}",
                memory.remedy()
            ),
        })
}

/// Checks the host's memory. Beside a device with memory of its own, the host has logits and
/// the texts that drafts are taken from.
pub(super) fn check_host(node: &NodeMemory, hardware: &Hardware) -> Result<(), ConfigError> {
    let free = hardware.available_memory;
    if node.host <= free {
        return Ok(());
    }
    Err(ConfigError::Memory {
        need: format!("logits and drafts take {} of this machine", gib(node.host)),
        have: format!("{} are available, beside those of the device", gib(free)),
        remedy: "Free memory, or lower what the speculative algorithm may keep".into(),
    })
}

pub(super) fn too_large(tokens: usize, fits: usize, place: &Place) -> ConfigError {
    ConfigError::Memory {
        need: format!(
            "--max-total-tokens {tokens} takes {}",
            gib(place.cost.bytes(tokens as u64))
        ),
        have: format!(
            "beside the weights there is room for {fits} tokens ({} of memory available)",
            gib(place.memory.free)
        ),
        remedy: format!("Give --max-total-tokens {fits} or less, or raise --mem-fraction-static"),
    }
}

/// Bytes for people.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

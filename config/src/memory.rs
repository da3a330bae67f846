//! Sizing of the KV cache by the memory.

use std::ops::Range;

use lockstep_types::{ConfigError, DeviceRoom, EngineShape, Footprint, KvConfig, StateLimits};

use crate::Hardware;
use crate::resolve::Resolved;
use cost::TokenCost;
use node::NodeMemory;
pub(crate) use states::StateOptions;

use room::{Memory, check_host, room_for_cache, too_large};

mod cost;
mod node;
mod room;
mod states;

/// Largest number of cache slots that can be numbered.
const MOST_TOKENS: usize = u32::MAX as usize;

/// Inputs of sizing beside the machine.
pub(crate) struct Sizing<'a> {
    /// The engine, with texts of the requested length.
    pub(crate) engine: EngineShape<'a>,
    pub(crate) footprint: &'a dyn Footprint,
    pub(crate) nnodes: usize,
    pub(crate) node_rank: usize,
    pub(crate) radix_cache: bool,
    pub(crate) overlap: bool,
    /// Bytes that the algorithm takes on every drafting rank, beside a draft model.
    pub(crate) drafter_bytes: u64,
    /// Value of `--context-length`.
    pub(crate) context_length: Option<usize>,
    /// Value of `--max-total-tokens`.
    pub(crate) max_total_tokens: Option<usize>,
    pub(crate) mem_fraction_static: f64,
    pub(crate) states: StateOptions,
}

impl Sizing<'_> {
    /// Tokens beyond its text that a request may hold in the cache: the tokens that a step may
    /// write, and those that steps in flight have written.
    fn in_flight(&self) -> usize {
        let reserve = self.engine.speculation.reserve();
        reserve.alloc_reserve_per_decode(self.overlap) as usize
    }

    /// Tokens in the cache of a group with a window that are of use; `None` if no group has one.
    fn window_tokens(&self) -> Option<u64> {
        let Self { engine, .. } = self;
        let (step, page) = (&engine.step, engine.page_size);
        let need = step.window_need(engine.model, page, self.in_flight(), self.overlap)?;
        // Page 0 is charged with the other groups'.
        Some((need.least_pages() - 1).saturating_mul(page) as u64)
    }

    /// States that running requests need; 0 for a model without recurrent layers.
    fn least_states(&self) -> usize {
        match self.engine.model.has_states() {
            true => self.engine.step.requests,
            false => 0,
        }
    }

    /// Memory of all ranks of this node, with or without the memory that lies `on_host`.
    fn node(&self, on_host: bool) -> NodeMemory {
        self.of_ranks(0..self.engine.tp_size / self.nnodes, on_host)
    }

    /// Memory of some ranks, which are counted on this node.
    fn of_ranks(&self, local: Range<usize>, on_host: bool) -> NodeMemory {
        let first = self.node_rank * (self.engine.tp_size / self.nnodes);
        let ranks = first + local.start..first + local.end;
        let records = StateLimits::of_steps(&self.engine.step, 0).node_records();
        let mut node = NodeMemory::default();
        for rank in ranks.clone() {
            node.add(&self.footprint.rank(&self.engine, rank), records, on_host);
        }
        let drafters = ranks.filter(|rank| self.engine.leads(*rank)).count() as u64;
        let on = if on_host {
            &mut node.drafts
        } else {
            &mut node.host
        };
        *on = on.saturating_add(self.drafter_bytes.saturating_mul(drafters));
        node
    }
}

/// Sizes the cache and the context.
///
/// A given `--max-total-tokens` is used as it is, after a check that it fits. Otherwise the
/// cache takes the memory that `--mem-fraction-static` leaves beside the weights, at most all
/// running requests at full context. The cache lies in the memories of devices, `rooms`, or in
/// the host's; of several, the one with the least room decides. Nodes may differ in memory and
/// must not differ in pages, so with several nodes nothing is derived from the memory.
pub(crate) fn size(
    sizing: &Sizing<'_>,
    hardware: &Hardware,
    rooms: &[DeviceRoom],
) -> Result<Resolved<(KvConfig, usize)>, ConfigError> {
    let page = sizing.engine.page_size;
    check_host(&sizing.node(rooms.is_empty()), hardware)?;
    let longest = sizing.engine.model.max_position_embeddings;
    let wanted_context = sizing.context_length.unwrap_or(longest);
    let per_request = (wanted_context + sizing.in_flight()).next_multiple_of(page);
    let useful = per_request.saturating_mul(sizing.engine.step.requests);
    let places = places(sizing, hardware, rooms)?;
    let states = states::count(sizing, &places, useful)?;
    let tightest = tightest(&places, states);
    let fits = usize::try_from(tightest.tokens(states))
        .unwrap_or(usize::MAX)
        .min(MOST_TOKENS - 2 * page)
        / page
        * page;
    let tokens = match sizing.max_total_tokens {
        Some(tokens) if tokens / page == 0 => {
            return Err(ConfigError::conflict(
                format!("--max-total-tokens {tokens}"),
                format!("--page-size {page}"),
                "the cache has not one page",
                format!("Give at least --max-total-tokens {per_request}"),
            ));
        }
        Some(tokens) if tokens > fits => return Err(too_large(tokens, fits, tightest)),
        Some(tokens) => tokens / page * page,
        None if sizing.nnodes > 1 && useful > fits => {
            return Err(ConfigError::conflict(
                format!("--nnodes {}", sizing.nnodes),
                "--max-total-tokens",
                format!(
                    "this node's memory holds {fits} of the {useful} tokens that all running \
                     requests could need, and all nodes must have the same cache"
                ),
                "Give --max-total-tokens, the same on every node, for the node with the least \
                 memory",
            ));
        }
        None => useful.min(fits),
    };
    let context = context(wanted_context, tokens, sizing)?;
    let notes = (context < wanted_context)
        .then(|| {
            format!(
                "the context is {context} of the model's {wanted_context} tokens: the cache \
                 holds no more; free memory or give --context-length"
            )
        })
        .into_iter()
        .collect();
    // Page 0 is kept for padding.
    let num_pages = tokens / page + 1;
    let kv = KvConfig {
        page_size: page,
        num_pages,
        states,
        dtype: sizing.engine.kv_dtype,
        radix_cache: sizing.radix_cache,
    };
    Ok(Resolved {
        value: (kv, context),
        notes,
    })
}

/// A memory that ranks allocate caches in.
struct Place {
    memory: Memory,
    /// Bytes for caches and states.
    bytes: u64,
    cost: TokenCost,
    /// Bytes of one state.
    state: u64,
}

impl Place {
    /// Returns the most tokens that fit beside `states` states.
    fn tokens(&self, states: usize) -> u64 {
        let states = (states as u64).saturating_mul(self.state);
        self.cost.tokens(self.bytes.saturating_sub(states))
    }
}

/// Returns the memory that can cache the fewest tokens beside `states` states; there is at least
/// one memory.
fn tightest(places: &[Place], states: usize) -> &Place {
    let fewer = |one: &'_ Place, other: &Place| other.tokens(states) < one.tokens(states);
    let (first, rest) = (&places[0], &places[1..]);
    rest.iter()
        .fold(first, |least, other| match fewer(least, other) {
            true => other,
            false => least,
        })
}

/// Returns the memories that ranks allocate caches in. They differ, since a DP rank's lead drafts
/// too, and ranks may share a device.
fn places(
    sizing: &Sizing<'_>,
    hardware: &Hardware,
    rooms: &[DeviceRoom],
) -> Result<Vec<Place>, ConfigError> {
    let look = |node: NodeMemory, memory: Memory| {
        Ok(Place {
            bytes: room_for_cache(&node, sizing, &memory)?,
            cost: TokenCost::of(&node, sizing),
            state: node.per_state,
            memory,
        })
    };
    if rooms.is_empty() {
        return Ok(vec![look(sizing.node(true), Memory::of_host(hardware))?]);
    }
    let (device, local) = (sizing.engine.device, sizing.engine.tp_size / sizing.nnodes);
    let each = local / rooms.len();
    let place = |(place, room): (usize, &DeviceRoom)| {
        let node = sizing.of_ranks(place * each..(place + 1) * each, false);
        look(node, Memory::of_device(device.of_rank(place), *room))
    };
    rooms.iter().enumerate().map(place).collect()
}

/// The longest text, so that one request alone fits into the cache.
fn context(wanted: usize, tokens: usize, sizing: &Sizing<'_>) -> Result<usize, ConfigError> {
    let longest = tokens.saturating_sub(sizing.in_flight());
    if wanted <= longest {
        return Ok(wanted);
    }
    if sizing.context_length.is_some() || longest == 0 {
        return Err(ConfigError::conflict(
            format!("--context-length {wanted}"),
            format!("a cache of {tokens} tokens"),
            "one request at full length would not fit",
            format!(
                "Give --context-length {} or less, or a larger cache with --max-total-tokens or \
                 --mem-fraction-static",
                longest.max(1)
            ),
        ));
    }
    Ok(longest)
}

#[cfg(test)]
mod tests;

//! Sizing of the KV cache by the memory.

use std::ops::Range;

use lockstep_types::{ConfigError, DeviceRoom, EngineShape, Footprint, KvConfig, RankMemory};

use crate::Hardware;
use crate::resolve::Resolved;
use cost::TokenCost;

mod cost;

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

    /// Memory of all ranks of this node, with or without the memory that lies `on_host`.
    fn node(&self, on_host: bool) -> NodeMemory {
        self.of_ranks(0..self.engine.tp_size / self.nnodes, on_host)
    }

    /// Memory of some ranks, which are counted on this node.
    fn of_ranks(&self, local: Range<usize>, on_host: bool) -> NodeMemory {
        let first = self.node_rank * (self.engine.tp_size / self.nnodes);
        let ranks = first + local.start..first + local.end;
        let mut node = NodeMemory::default();
        for rank in ranks.clone() {
            node.add(&self.footprint.rank(&self.engine, rank), on_host);
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

/// The memory that weights and cache share, in bytes.
struct Memory {
    total: u64,
    free: u64,
    /// Name of the memory's owner if it is not the host, such as "GPU 0".
    of: Option<String>,
}

impl Memory {
    /// Memory of the host.
    fn of_host(hardware: &Hardware) -> Self {
        Self {
            total: hardware.total_memory,
            free: hardware.available_memory,
            of: None,
        }
    }

    /// Memory of a device.
    fn of_device(number: usize, room: DeviceRoom) -> Self {
        Self {
            total: room.total,
            free: room.free,
            of: Some(format!("GPU {number}")),
        }
    }

    /// Advice for making room, beside options.
    fn remedy(&self) -> String {
        match &self.of {
            Some(gpu) => format!("Use a smaller model, or free memory of {gpu}"),
            None => "Use a smaller model or more nodes, free memory".to_owned(),
        }
    }
}

/// Bytes that a node's ranks take.
#[derive(Debug, Default, PartialEq, Eq)]
struct NodeMemory {
    /// Weights of targets, and weights of drafts.
    weights: u64,
    drafts: u64,
    /// Memory of steps beside weights and cache.
    activations: u64,
    /// The part of `activations` that exchanges between ranks take.
    exchange: u64,
    /// Keys and values of one cached token, in the groups of layers that keep all positions.
    per_token: u64,
    /// Those in the groups with sliding windows.
    window_per_token: u64,
    /// Memory on the host, beside a device with memory of its own.
    host: u64,
}

impl NodeMemory {
    fn add(&mut self, rank: &RankMemory, on_host: bool) {
        let sum = |values: &[u64]| values.iter().fold(0, |a: u64, b| a.saturating_add(*b));
        let RankMemory {
            target,
            draft,
            scratch,
            graphs,
            exchange,
            gathered,
        } = rank;
        let exchange = sum(&[*exchange, *gathered]);
        self.weights = sum(&[self.weights, target.weights, target.vectors]);
        self.drafts = sum(&[self.drafts, draft.weights, draft.vectors]);
        self.activations = sum(&[
            self.activations,
            target.activations,
            draft.activations,
            *scratch,
            *graphs,
            exchange,
        ]);
        self.exchange = self.exchange.saturating_add(exchange);
        let host = target.host.saturating_add(draft.host);
        let on = if on_host {
            &mut self.activations
        } else {
            &mut self.host
        };
        *on = on.saturating_add(host);
        self.per_token = sum(&[self.per_token, target.kv_per_token, draft.kv_per_token]);
        self.window_per_token = sum(&[
            self.window_per_token,
            target.kv_window_per_token,
            draft.kv_window_per_token,
        ]);
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
    let Tightest {
        tokens: fits,
        cost,
        memory,
    } = tightest(sizing, hardware, rooms)?;
    let fits = usize::try_from(fits)
        .unwrap_or(usize::MAX)
        .min(MOST_TOKENS - 2 * page)
        / page
        * page;
    let per_request = (wanted_context + sizing.in_flight()).next_multiple_of(page);
    let useful = per_request.saturating_mul(sizing.engine.step.requests);
    let tokens = match sizing.max_total_tokens {
        Some(tokens) if tokens / page == 0 => {
            return Err(ConfigError::conflict(
                format!("--max-total-tokens {tokens}"),
                format!("--page-size {page}"),
                "the cache has not one page",
                format!("Give at least --max-total-tokens {per_request}"),
            ));
        }
        Some(tokens) if tokens > fits => return Err(too_large(tokens, fits, cost, &memory)),
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
        states: 0,
        dtype: sizing.engine.kv_dtype,
        radix_cache: sizing.radix_cache,
    };
    Ok(Resolved {
        value: (kv, context),
        notes,
    })
}

/// The memory that can cache the fewest tokens.
struct Tightest {
    tokens: u64,
    cost: TokenCost,
    memory: Memory,
}

/// The memory that can cache the fewest tokens beside its ranks' other data. Memories differ,
/// since a DP rank's lead drafts too, and ranks may share a device.
fn tightest(
    sizing: &Sizing<'_>,
    hardware: &Hardware,
    rooms: &[DeviceRoom],
) -> Result<Tightest, ConfigError> {
    let look = |node: NodeMemory, memory: Memory| {
        let bytes = room_for_cache(&node, sizing, &memory)?;
        let cost = TokenCost::of(&node, sizing);
        Ok(Tightest {
            tokens: cost.tokens(bytes),
            cost,
            memory,
        })
    };
    let (device, local) = (sizing.engine.device, sizing.engine.tp_size / sizing.nnodes);
    let each = local / rooms.len().max(1);
    let mut least = None;
    for (place, room) in rooms.iter().enumerate() {
        let node = sizing.of_ranks(place * each..(place + 1) * each, false);
        let found = look(node, Memory::of_device(device.of_rank(place), *room))?;
        if least
            .as_ref()
            .is_none_or(|least: &Tightest| found.tokens < least.tokens)
        {
            least = Some(found);
        }
    }
    match least {
        Some(least) => Ok(least),
        None => look(sizing.node(true), Memory::of_host(hardware)),
    }
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

/// Bytes for the cache.
fn room_for_cache(
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
    let least = TokenCost::of(node, sizing).bytes(sizing.engine.page_size as u64);
    budget
        .checked_sub(weights)
        .filter(|room| *room >= least)
        .ok_or_else(|| ConfigError::Memory {
            need: match drafts {
                0 => format!("the weights take {}", gib(weights)),
                drafts => format!(
                    "the weights take {}, {} of it for drafts",
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
                "{}, raise --mem-fraction-static, or lower --chunked-prefill-size{fewer}{host}",
                memory.remedy()
            ),
        })
}

/// Checks the host's memory. Beside a device with memory of its own, the host has logits and
/// the texts that drafts are taken from.
fn check_host(node: &NodeMemory, hardware: &Hardware) -> Result<(), ConfigError> {
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

fn too_large(tokens: usize, fits: usize, cost: TokenCost, memory: &Memory) -> ConfigError {
    ConfigError::Memory {
        need: format!(
            "--max-total-tokens {tokens} takes {}",
            gib(cost.bytes(tokens as u64))
        ),
        have: format!(
            "beside the weights there is room for {fits} tokens ({} of memory available)",
            gib(memory.free)
        ),
        remedy: format!("Give --max-total-tokens {fits} or less, or raise --mem-fraction-static"),
    }
}

/// Bytes for people.
fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;

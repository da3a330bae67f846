//! How much of the memory becomes KV cache.

use lockstep_types::{
    ConfigError, Dtype, KvCacheDtype, KvConfig, ModelConfig, Quantization, SpeculationConfig,
    StepLimits,
};

use crate::Hardware;
use crate::resolve::Resolved;

mod draft;

pub use draft::{DraftMemory, draft_memory};

/// The largest number of cache slots that can be numbered.
const MOST_TOKENS: usize = u32::MAX as usize;

/// Bytes of a block of logits, on the device and on the host.
const LOGITS: u64 = 2 * (64 << 20);

/// What sizing depends on beside the model and the machine.
pub(crate) struct Sizing {
    pub(crate) dtype: Dtype,
    pub(crate) quantization: Quantization,
    pub(crate) kv_dtype: KvCacheDtype,
    pub(crate) tp_size: usize,
    pub(crate) nnodes: usize,
    pub(crate) node_rank: usize,
    pub(crate) page_size: usize,
    pub(crate) radix_cache: bool,
    /// The largest step, of texts as long as asked for.
    pub(crate) step: StepLimits,
    pub(crate) overlap: bool,
    pub(crate) speculation: SpeculationConfig,
    /// What the algorithm takes beside a draft model.
    pub(crate) drafter_bytes: u64,
    /// `--context-length`.
    pub(crate) context_length: Option<usize>,
    /// `--max-total-tokens`.
    pub(crate) max_total_tokens: Option<usize>,
    pub(crate) mem_fraction_static: f64,
}

impl Sizing {
    /// Tokens beyond its text that a request may hold in the cache: what a step
    /// may write, and what steps in flight have written.
    fn in_flight(&self) -> usize {
        let reserve = self.speculation.reserve();
        reserve.alloc_reserve_per_decode(self.overlap) as usize
    }
}

/// Bytes that one cached token takes on this node, over its ranks, with what
/// the draft keeps of it.
pub(crate) fn kv_bytes_per_token(model: &ModelConfig, sizing: &Sizing) -> u64 {
    let ranks = sizing.tp_size / sizing.nnodes;
    let heads = model.kv_heads_per_rank(sizing.tp_size) * ranks;
    let target = 2 * model.num_layers * heads * sizing.kv_dtype.row_bytes(model.head_dim);
    target as u64 + draft::kv_bytes_per_token(sizing)
}

/// Bytes of weights on this node. A tied table is held once: rows are looked up
/// in the matrix that is the output head.
pub(crate) fn weight_bytes(model: &ModelConfig, sizing: &Sizing) -> u64 {
    let tables = if model.tie_word_embeddings { 1 } else { 2 };
    let tables = tables * model.vocab_size * model.hidden_size;
    let projections = model.parameters() - tables;
    let bytes = sizing.quantization.bytes(sizing.dtype, projections, tables);
    bytes.div_ceil(sizing.nnodes) as u64
}

/// Bytes of activations that a step needs on this node, over its ranks: f32 for
/// every token, and a block of logits. Every running request may have all its
/// drafts verified.
fn activation_bytes(model: &ModelConfig, sizing: &Sizing) -> u64 {
    let ranks = sizing.tp_size / sizing.nnodes;
    let heads = model.num_heads / sizing.nnodes;
    let kv_heads = model.kv_heads_per_rank(sizing.tp_size) * ranks;
    // Residual stream, its change and its norm on every rank; queries, keys,
    // values and two copies of what attention gives; gate, up and their product.
    let widths = [
        3 * model.hidden_size * ranks,
        (3 * heads + 2 * kv_heads) * model.head_dim,
        3 * model.intermediate_size.div_ceil(sizing.nnodes),
    ];
    let tokens = sizing.step.tokens as u64;
    let rows = |width: usize| tokens.saturating_mul(4 * width as u64);
    let steps = widths.map(rows).into_iter().fold(0, u64::saturating_add);
    steps
        .saturating_add(LOGITS.min(rows(model.vocab_size).saturating_mul(2)))
        .saturating_add(draft::activation_bytes(model, sizing))
}

/// Sizes the cache and the context.
///
/// A given `--max-total-tokens` is taken as it is, after a check that it fits.
/// Otherwise the cache takes what `--mem-fraction-static` leaves beside the
/// weights, at most all running requests at full context. Nodes may differ in
/// memory and must not differ in pages, so with several of them nothing is
/// derived from the memory.
pub(crate) fn size(
    model: &ModelConfig,
    sizing: &Sizing,
    hardware: &Hardware,
) -> Result<Resolved<(KvConfig, usize)>, ConfigError> {
    let page = sizing.page_size;
    let per_token = kv_bytes_per_token(model, sizing);
    let wanted_context = sizing
        .context_length
        .unwrap_or(model.max_position_embeddings);
    let fits = room(model, sizing, hardware)? / per_token;
    let fits = usize::try_from(fits)
        .unwrap_or(usize::MAX)
        .min(MOST_TOKENS - 2 * page)
        / page
        * page;
    let per_request = (wanted_context + sizing.in_flight()).next_multiple_of(page);
    let useful = per_request.saturating_mul(sizing.step.requests);
    let tokens = match sizing.max_total_tokens {
        Some(tokens) if tokens / page == 0 => {
            return Err(ConfigError::conflict(
                format!("--max-total-tokens {tokens}"),
                format!("--page-size {page}"),
                "the cache has not one page",
                format!("Give at least --max-total-tokens {per_request}"),
            ));
        }
        Some(tokens) if tokens > fits => return Err(too_large(tokens, fits, per_token, hardware)),
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
        dtype: sizing.kv_dtype,
        radix_cache: sizing.radix_cache,
    };
    Ok(Resolved {
        value: (kv, context),
        notes,
    })
}

/// The longest text, given that one request must fit into the cache alone.
fn context(wanted: usize, tokens: usize, sizing: &Sizing) -> Result<usize, ConfigError> {
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
fn room(model: &ModelConfig, sizing: &Sizing, hardware: &Hardware) -> Result<u64, ConfigError> {
    let rest = (hardware.total_memory as f64 * (1.0 - sizing.mem_fraction_static)) as u64;
    // What stays free has to hold the activations, however much was asked for.
    let activations = activation_bytes(model, sizing);
    let kept = rest.max(activations);
    let budget = hardware.available_memory.saturating_sub(kept);
    let drafts = draft::weight_bytes(model, sizing);
    let weights = weight_bytes(model, sizing).saturating_add(drafts);
    let least = kv_bytes_per_token(model, sizing) * sizing.page_size as u64;
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
                "--mem-fraction-static {} of {}, and activations of {}, leave {} of the {} available",
                sizing.mem_fraction_static,
                gib(hardware.total_memory),
                gib(activations),
                gib(budget),
                gib(hardware.available_memory),
            ),
            remedy: "Use a smaller model or more nodes, free memory, raise --mem-fraction-static, \
                     or lower --chunked-prefill-size"
                .into(),
        })
}

fn too_large(tokens: usize, fits: usize, per_token: u64, hardware: &Hardware) -> ConfigError {
    ConfigError::Memory {
        need: format!(
            "--max-total-tokens {tokens} takes {}",
            gib(per_token.saturating_mul(tokens as u64))
        ),
        have: format!(
            "beside the weights there is room for {fits} tokens ({} of memory available)",
            gib(hardware.available_memory)
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

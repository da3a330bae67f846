//! What drafting takes: weights, keys and values, activations. All of it lies
//! with rank 0, which drafts alone.

use lockstep_types::{
    DraftKind, DraftKv, DraftModel, EngineConfig, KvCacheDtype, ModelConfig, SpeculationConfig,
    Verification,
};

use super::Sizing;

/// Bytes that drafting takes on the node with rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftMemory {
    /// Weights of the draft, and the whole tables of tokens that it shares with
    /// the target, where each rank of the target holds a part of them.
    pub weights: u64,
    /// Its keys and values, for the whole cache.
    pub kv: u64,
}

/// What drafting takes; `None` where nothing is drafted, or without weights.
pub fn draft_memory(engine: &EngineConfig) -> Option<DraftMemory> {
    let draft = engine.speculation.draft.as_ref()?;
    let tables = Tables {
        tp_size: engine.parallel.tp_size,
        target: &engine.model,
    };
    let bytes = weights(draft, &tables);
    let tokens = (engine.kv.num_pages * engine.kv.page_size) as u64;
    Some(DraftMemory {
        weights: engine
            .quantization
            .bytes(engine.dtype, bytes.projections, bytes.tables) as u64,
        kv: tokens * kv_bytes(&engine.speculation, engine.kv.dtype),
    })
}

/// Bytes of keys and values of a token.
fn kv_bytes(speculation: &SpeculationConfig, dtype: KvCacheDtype) -> u64 {
    match (&speculation.draft, speculation.draft_kv) {
        (None, _) | (_, DraftKv::None) => 0,
        (Some(DraftModel { model, .. }), _) => {
            (2 * model.num_layers * model.num_kv_heads * dtype.row_bytes(model.head_dim)) as u64
        }
    }
}

/// Bytes that a cached token takes on this node beside the target's.
pub(super) fn kv_bytes_per_token(sizing: &Sizing) -> u64 {
    match sizing.node_rank {
        0 => kv_bytes(&sizing.speculation, sizing.kv_dtype),
        _ => 0,
    }
}

/// Bytes of weights on this node beside the target's, and of whatever else the
/// algorithm keeps.
pub(super) fn weight_bytes(target: &ModelConfig, sizing: &Sizing) -> u64 {
    if sizing.node_rank > 0 {
        return 0;
    }
    let Some(draft) = &sizing.speculation.draft else {
        return sizing.drafter_bytes;
    };
    let tables = Tables {
        tp_size: sizing.tp_size,
        target,
    };
    let weights = weights(draft, &tables);
    let bytes = sizing
        .quantization
        .bytes(sizing.dtype, weights.projections, weights.tables) as u64;
    bytes.saturating_add(sizing.drafter_bytes)
}

/// Whose tables of tokens a head reads.
struct Tables<'a> {
    tp_size: usize,
    target: &'a ModelConfig,
}

/// Numbers of weights.
#[derive(Debug, PartialEq, Eq)]
struct Weights {
    /// In layers.
    projections: usize,
    /// In tables of tokens.
    tables: usize,
}

fn weights(draft: &DraftModel, shared: &Tables<'_>) -> Weights {
    let model = &draft.model;
    let hidden = model.hidden_size;
    // One layer of a head; queries, keys and values read `inputs` columns.
    let layer = |inputs: usize| {
        let attention =
            inputs * (model.num_heads + 2 * model.num_kv_heads) + hidden * model.num_heads;
        attention * model.head_dim + 3 * hidden * model.intermediate_size
    };
    let own = |rows: usize, is_own: bool| if is_own { rows * hidden } else { 0 };
    // Heads read the target's tables. Where each rank has a part of those, the
    // one that drafts holds them whole beside it.
    let target = shared.target;
    let head_is_read = !draft.own_head && !target.tie_word_embeddings;
    let whole = match (shared.tp_size, head_is_read) {
        (1, _) => 0,
        (_, false) => target.vocab_size * hidden,
        (_, true) => 2 * target.vocab_size * hidden,
    };
    match &draft.kind {
        DraftKind::Model => {
            let count = if model.tie_word_embeddings { 1 } else { 2 };
            let tables = count * model.vocab_size * hidden;
            Weights {
                projections: model.parameters() - tables,
                tables,
            }
        }
        DraftKind::Eagle => Weights {
            // fc and its bias, and the norm behind attention.
            projections: 2 * hidden * hidden + hidden + layer(hidden) + hidden,
            tables: own(target.vocab_size, draft.own_embedding) + whole,
        },
        DraftKind::Eagle3 {
            draft_vocab_size,
            capture_layers,
        } => Weights {
            // fc, and three norms of the layer and the last one.
            projections: capture_layers.len() * hidden * hidden + layer(2 * hidden) + 4 * hidden,
            tables: own(target.vocab_size, draft.own_embedding)
                + own(*draft_vocab_size, draft.own_head)
                + whole,
        },
    }
}

/// Bytes of activations on this node: what is captured of a step of `tokens`
/// rows of the target, a pass of the draft over all of them or over all nodes of
/// all trees, its logits, and the distributions that drafts are sampled from.
pub(super) fn activation_bytes(target: &ModelConfig, sizing: &Sizing) -> u64 {
    let speculation = &sizing.speculation;
    let Some(draft) = speculation.draft.as_ref().filter(|_| sizing.node_rank == 0) else {
        return 0;
    };
    let model = &draft.model;
    let (captured, vocab) = match &draft.kind {
        DraftKind::Model => (0, model.vocab_size),
        DraftKind::Eagle => (1, target.vocab_size),
        DraftKind::Eagle3 {
            draft_vocab_size,
            capture_layers,
        } => (capture_layers.len(), *draft_vocab_size),
    };
    let hidden = model.hidden_size;
    // Captured, joined for fc; then as of a rank of the target.
    let width = 2 * (captured + 1) * hidden
        + 3 * hidden
        + (3 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        + 3 * model.intermediate_size;
    let rows = |rows: u64, width: usize| rows.saturating_mul(4 * width as u64);
    let sampled = match speculation.verification {
        Verification::Target => 0,
        Verification::Rejection | Verification::Block => {
            sizing.step.requests * speculation.num_draft_tokens
        }
    };
    let frontier = (sizing.step.requests as u64).saturating_mul(speculation.topk as u64);
    let passed = sizing.step.draft_tokens() as u64;
    rows(passed, width)
        .saturating_add(super::LOGITS.min(rows(passed, 2 * vocab)))
        // Those of a whole frontier are collected on the host, and copied once.
        .saturating_add(rows(frontier, 2 * vocab))
        .saturating_add(rows(sampled as u64, target.vocab_size))
}

#[cfg(test)]
mod tests;

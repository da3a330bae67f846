//! Memory that drafting takes. The lead of each DP rank drafts alone and holds all of it,
//! except the target's last hidden state: every rank keeps that.

use lockstep_backend::{DeviceMemory, Holds, PassShape};
use lockstep_types::{
    AdapterLimits, DflashSpec, DraftKind, DraftKv, DraftModel, EngineShape, MemoryUse, Verification,
};

use super::{Part, Weighed, count, kv_per_token, pass, rope_bytes};
use crate::{
    CaptureSpec, ForwardLimits, Shard, Topology,
    blocks::{allocate::Counter, attention_shapes, expert_shapes, latent_heads, parts::MatrixPart},
    models::{
        decoder,
        dflash::Dflash,
        eagle::{self, Eagle, Present},
    },
    runner::dflash,
    runner::draft_passes::are_grown,
    runner::eagle::{Buffers, Sizes},
    runner::feature_window,
};

/// Returns the memory of the hidden states that a rank of the target keeps for the draft.
pub(super) fn kept_of_target(
    device: &dyn DeviceMemory,
    engine: &EngineShape<'_>,
    topology: Topology,
    tokens: usize,
) -> MemoryUse {
    let capture = engine.speculation.draft.as_ref().map(CaptureSpec::of_draft);
    let kept = capture.unwrap_or_default().on_rank(topology.attention.rank);
    MemoryUse {
        activations: device.tensor_bytes(
            tokens,
            kept.width(engine.model.hidden_size),
            Holds::Operand,
        ),
        ..MemoryUse::default()
    }
}

/// Returns memory and largest pass of the draft model; `None` if there is no draft model.
pub(super) fn part(device: &dyn DeviceMemory, engine: &EngineShape<'_>) -> Option<Part> {
    let speculation = engine.speculation;
    let draft = speculation.draft.as_ref()?;
    let limits = ForwardLimits::of_drafts(&engine.step, engine.page_size, engine.model.vocab_size);
    let shard = Shard::of(&draft.model, Topology::alone());
    let mut part = match &draft.kind {
        DraftKind::Model => {
            let room = (limits, AdapterLimits::default());
            Part::of_model(device, engine, &draft.model, &shard, room)
        }
        DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. } => {
            Part::of_head(device, engine, draft, &shard, limits)
        }
        DraftKind::Dflash(spec) => Part::of_dflash(device, engine, (draft, spec), &shard, limits),
    };
    if speculation.draft_kv == DraftKv::None {
        part.memory.kv_per_token = 0;
        part.memory.kv_window_per_token = 0;
    }
    let host = drafters_host(engine, draft, limits.logit_block_rows);
    part.memory.host = part.memory.host.saturating_add(host);
    Some(part)
}

/// Returns the number of graphs of each size that run text and levels of drafts: one for each
/// layer that drafts in turn.
pub(super) fn graphs_of_each_size(engine: &EngineShape<'_>) -> usize {
    let draft = engine.speculation.draft.as_ref();
    draft.map_or(1, DraftModel::layers_in_turn)
}

/// Returns the number of passes in the graphs that draft chains or trees on the device.
pub(super) fn passes_of_chains(device: &dyn DeviceMemory, engine: &EngineShape<'_>) -> usize {
    let speculation = engine.speculation;
    let verifies = speculation.verification == Verification::Target;
    let chooses = device.chooses(engine.tp_size);
    let (steps, branches) = (speculation.num_steps, speculation.topk);
    let grown = branches == 1 || are_grown(steps, branches);
    let in_turn = speculation
        .draft
        .as_ref()
        .map_or(1, DraftModel::layers_in_turn)
        > 1;
    // The passes of a head are together about as long as one of a model.
    let each = match speculation.draft.as_ref().map(|draft| &draft.kind) {
        _ if !verifies || !chooses || !grown => 0,
        // A host drafts blocks.
        None | Some(DraftKind::Dflash(_)) => 0,
        // A host drafts with several layers.
        _ if in_turn => 0,
        Some(DraftKind::Model) => speculation.num_steps,
        Some(DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. }) => 1,
    };
    let all = engine.graphs.iter();
    let own = all.filter(|size| **size <= engine.step.requests);
    own.count() * each
}

/// Returns the bytes that drafters keep on the host: logits of a whole frontier, and the
/// distributions that drafts are drawn from. Heads collect the logits block by block.
fn drafters_host(engine: &EngineShape<'_>, draft: &DraftModel, block: usize) -> u64 {
    let (speculation, requests) = (engine.speculation, engine.step.requests);
    let frontier = requests.saturating_mul(speculation.topk);
    let collected = match draft.kind {
        // Blocks of logits are read where they are.
        DraftKind::Model | DraftKind::Dflash(_) => 0,
        // The head's buffers already count room for one state of each request.
        DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. }
            if frontier > block =>
        {
            frontier - if requests > block { requests } else { 0 }
        }
        DraftKind::Eagle | DraftKind::Eagle3 { .. } | DraftKind::Nextn { .. } => 0,
    };
    let most = speculation
        .max_speculative_num_draft_tokens
        .saturating_sub(1);
    let drawn = match speculation.verification {
        Verification::Target => 0,
        Verification::Rejection | Verification::Block => requests.saturating_mul(most),
    };
    let bytes = |rows: usize, width: usize| (rows as u64).saturating_mul(4 * width as u64);
    bytes(
        frontier.saturating_add(collected),
        eagle::vocab(draft, engine.model),
    )
    .saturating_add(bytes(drawn, engine.model.vocab_size))
}

/// Counts the features that a head keeps of steps without drafts, in rows of width
/// `features`.
fn count_window(counter: &mut Counter<'_>, engine: &EngineShape<'_>, features: usize) {
    let (slots, window) = (engine.step.requests, engine.speculation.kept_positions());
    if window > 0 {
        count(feature_window::rows(counter, slots, window, features));
    }
}

/// Returns the bytes of the target's token numbers for a head's tokens, on a device that
/// drafts by itself.
fn ids(device: &dyn DeviceMemory, engine: &EngineShape<'_>, draft: &DraftModel) -> u64 {
    match &draft.kind {
        DraftKind::Model | DraftKind::Eagle | DraftKind::Nextn { .. } | DraftKind::Dflash(_) => 0,
        DraftKind::Eagle3 { .. } => device.draft_ids_bytes(eagle::vocab(draft, engine.model)),
    }
}

/// Returns the bytes of the target's whole tables that a draft reads, and that the target's
/// ranks hold in parts.
fn tables_of_target(
    device: &dyn DeviceMemory,
    engine: &EngineShape<'_>,
    draft: &DraftModel,
) -> u64 {
    let (target, all) = (engine.model, 0..engine.model.vocab_size);
    let in_parts = engine.tp_size > 1;
    let reads_head = !draft.own_head && !target.tie_word_embeddings;
    let shared = [
        (
            in_parts && engine.dp_size == 1,
            decoder::embedding(target, all.clone()),
        ),
        (in_parts && reads_head, decoder::head(target, all)),
    ];
    let held = shared.iter().filter(|(held, _)| *held);
    let bytes = held.map(|(_, table)| device.matrix_bytes(table.shape(target)));
    bytes.fold(0, u64::saturating_add)
}

impl Part {
    /// Counts a DFlash model. Also counts the target's whole tables, if the target's ranks hold
    /// parts.
    fn of_dflash(
        device: &dyn DeviceMemory,
        engine: &EngineShape<'_>,
        (draft, spec): (&DraftModel, &DflashSpec),
        shard: &Shard,
        limits: ForwardLimits,
    ) -> Self {
        let (model, target) = (&draft.model, engine.model);
        let limits = dflash::Sizes::limits(spec, limits);
        let listed = Dflash::listed(draft, target);
        let weights = Weighed::of(device, model, &listed);
        let sizes = dflash::Sizes {
            features: CaptureSpec::of_draft(draft).width(target.hidden_size),
            vocab: target.vocab_size,
            limits,
        };
        let mut counter = Counter::new(device);
        count(dflash::Buffers::new(&mut counter, model, shard, &sizes));
        counter.inputs(&limits.inputs());
        if spec.causal.contains(&true) {
            counter.inputs(&limits.inputs());
        }
        count_window(&mut counter, engine, sizes.features);
        let [full, window] = kv_per_token(device, model, shard, engine.kv_dtype);
        let head = decoder::head(target, 0..target.vocab_size);
        Self {
            memory: MemoryUse {
                weights: (weights.matrices).saturating_add(tables_of_target(device, engine, draft)),
                vectors: (weights.vectors).saturating_add(rope_bytes(
                    device,
                    model,
                    limits.positions,
                )),
                kv_per_token: full,
                kv_window_per_token: window,
                state: 0,
                record: 0,
                activations: counter.activations,
                host: counter.host,
            },
            pass: pass(
                limits,
                1,
                &weights.projections,
                head.shape(target),
                attention_shapes(model, shard),
                expert_shapes(
                    model,
                    listed.layers.iter().filter_map(|layer| layer.mlp.as_ref()),
                ),
            ),
        }
    }

    /// Counts a head. Also counts the target's whole tables, if the head reads them and the
    /// target's ranks hold parts.
    fn of_head(
        device: &dyn DeviceMemory,
        engine: &EngineShape<'_>,
        draft: &DraftModel,
        shard: &Shard,
        limits: ForwardLimits,
    ) -> Self {
        let limits = limits.sensible();
        let (model, target) = (&draft.model, engine.model);
        let vocab = eagle::vocab(draft, target);
        let head = MatrixPart::table(eagle::HEAD, vocab, model.hidden_size);
        let head = head.shape(model);
        let present = match draft.kind {
            DraftKind::Nextn { .. } => Present::NONE,
            // Norms and biases are charged, though not all checkpoints have them.
            _ => Present {
                embedding: draft.own_embedding,
                head: draft.own_head,
                fc_bias: true,
                input_norm: true,
            },
        };
        let listed = Eagle::listed(draft, target, present);
        let layers = || listed.layers.iter().map(|own| &own.layer);
        let weights = Weighed::of(device, model, &listed);
        let shared = tables_of_target(device, engine, draft);
        let features = CaptureSpec::of_draft(draft).width(target.hidden_size);
        let mut counter = Counter::new(device);
        let sizes = Sizes {
            features,
            joined_norm: eagle::norms(draft).before_projection,
            layers: draft.layers_in_turn(),
            vocab,
            requests: engine.step.requests,
            limits,
        };
        count(Buffers::new(&mut counter, model, shard, &sizes));
        counter.inputs(&limits.inputs());
        count_window(&mut counter, engine, features);
        let vectors = (weights.vectors)
            .saturating_add(ids(device, engine, draft))
            .saturating_add(rope_bytes(device, model, limits.positions));
        let [full, window] = kv_per_token(device, model, shard, engine.kv_dtype);
        Self {
            memory: MemoryUse {
                weights: weights.matrices.saturating_add(shared),
                vectors,
                kv_per_token: full,
                kv_window_per_token: window,
                state: 0,
                record: 0,
                activations: counter.activations,
                host: counter.host,
            },
            pass: PassShape {
                latent: latent_heads(model, layers().filter_map(|own| own.mixer.as_ref())),
                ..pass(
                    limits,
                    1,
                    &weights.projections,
                    head,
                    attention_shapes(model, shard),
                    expert_shapes(model, layers().filter_map(|own| own.mlp.as_ref())),
                )
            },
        }
    }
}

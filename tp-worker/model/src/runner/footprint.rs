//! Memory that a rank takes, known before anything is loaded.

mod draft;

use lockstep_backend::{
    AdaptedShape, AttentionShape, DeviceMemory, ExpertsShape, MatrixRole, MatrixShape, PassShape,
    RankLayout,
};
use lockstep_types::{
    AdapterLimits, EngineShape, KvCacheDtype, KvPages, MemoryUse, ModelConfig, RankMemory,
    StateLimits,
};

use crate::{
    ForwardLimits, Shard, Topology,
    blocks::allocate::Counter,
    blocks::{
        attention_shapes,
        cache::cache_shapes,
        expert_shapes, latent_heads,
        parts::{Listed, Tensors},
        recurrent::{recurrences, state_shapes},
        rope_tables,
    },
    models::{adapters::Adaptable, decoder::Decoder},
    runner::transformer::{Buffers, tail},
};

/// Returns the bytes that rank `rank` of `engine` takes on `device`. The ranks must divide
/// the model, which the configuration checks.
pub fn rank_memory(device: &dyn DeviceMemory, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
    let topology = Topology::new(rank, engine.tp_size, engine.dp_size).with_experts(engine.ep_size);
    let shard = Shard::of(engine.model, topology);
    let limits = ForwardLimits::of_steps(&engine.step, engine.page_size, engine.model)
        .of_device(device.chooses(engine.tp_size));
    let room = engine.adapters;
    let target = Part::of_model(device, engine, engine.model, &shard, (limits, room));
    let recorded = |tokens: usize| engine.graphs.iter().filter(|size| **size <= tokens).count();
    let mut graphs = recorded(target.pass.tokens);
    let mut passes = vec![target.pass];
    let mut draft = draft::kept_of_target(device, engine, topology, limits.max_tokens);
    if topology.attention.leads()
        && let Some(part) = draft::part(device, engine)
    {
        draft.weights = part.memory.weights;
        draft.vectors = part.memory.vectors;
        // A draft's caches all lie under pages of the target that keep all positions.
        let MemoryUse {
            kv_per_token: full,
            kv_window_per_token: window,
            ..
        } = part.memory;
        draft.kv_per_token = full.saturating_add(window);
        draft.activations = draft.activations.saturating_add(part.memory.activations);
        draft.host = part.memory.host;
        graphs += recorded(part.pass.tokens) * draft::graphs_of_each_size(engine);
        graphs += draft::passes_of_chains(device, engine);
        passes.push(part.pass);
    }
    let mut target = target.memory;
    let place = RankLayout {
        rank,
        ranks: engine.tp_size,
        dp_ranks: engine.dp_size,
    };
    let through_host = device.host_bytes(&passes, place);
    target.host = target.host.saturating_add(through_host);
    RankMemory {
        target,
        draft,
        scratch: device.scratch_bytes(&passes),
        exchange: device.exchange_bytes(place),
        gathered: device.gathered_bytes(&passes, place),
        graphs: device.graph_bytes().saturating_mul(graphs as u64),
    }
}

/// Returns the heads of the first of `ranks` ranks that attention is split over, each shape of
/// the layers once. `ranks` must divide the model's heads.
pub fn rank_attentions(model: &ModelConfig, ranks: usize) -> Vec<AttentionShape> {
    attention_shapes(model, &Shard::of(model, Topology::new(0, ranks, 1)))
}

/// Returns the mixtures of experts of one of the ranks of `topology`, each size of the layers once.
/// The ranks must divide the model's heads.
pub fn rank_experts(model: &ModelConfig, topology: Topology) -> Vec<ExpertsShape> {
    let shard = Shard::of(model, topology);
    let listed = Decoder::listed(model, &shard);
    expert_shapes(
        model,
        listed.layers.iter().filter_map(|layer| layer.mlp.as_ref()),
    )
}

/// Returns the bytes of a model's caches for one token: in all groups of layers that keep all
/// positions, and in all groups with windows.
fn kv_per_token(
    device: &dyn DeviceMemory,
    model: &ModelConfig,
    shard: &Shard,
    dtype: KvCacheDtype,
) -> [u64; 2] {
    let one = |full, window| {
        let shapes = cache_shapes(model, shard, 1, KvPages { full, window }, 1, dtype);
        let bytes = shapes.iter().map(|shape| device.kv_bytes(shape));
        bytes.fold(0, u64::saturating_add)
    };
    [one(1, 0), one(0, 1)]
}

/// Returns the bytes of one state, and of the record of one node, in all recurrent layers.
fn state_and_record(device: &dyn DeviceMemory, model: &ModelConfig, shard: &Shard) -> [u64; 2] {
    let of = |limits| {
        let shapes = state_shapes(model, shard, limits);
        let bytes = shapes.iter().map(|shape| device.states_bytes(shape));
        bytes.fold(0, u64::saturating_add)
    };
    let one_state = StateLimits {
        states: 1,
        ..StateLimits::default()
    };
    let records = StateLimits {
        records: 1,
        nodes: 1,
        ..StateLimits::default()
    };
    [of(one_state), of(records) / StateLimits::SIDES as u64]
}

/// Returns the bytes of the rotary tables of a model's layers.
fn rope_bytes(device: &dyn DeviceMemory, model: &ModelConfig, positions: usize) -> u64 {
    let tables = rope_tables(model).into_iter();
    let bytes = tables.map(|(rope, width)| {
        let factors = rope
            .query_scaling
            .map_or(0, |_| device.vector_bytes(positions));
        device.rope_bytes(positions, width / 2) + factors
    });
    bytes.fold(0, u64::saturating_add)
}

/// Memory of a model on a rank, and the model's largest pass.
struct Part {
    memory: MemoryUse,
    pass: PassShape,
}

impl Part {
    /// Counts a whole model's shard.
    fn of_model(
        device: &dyn DeviceMemory,
        engine: &EngineShape<'_>,
        model: &ModelConfig,
        shard: &Shard,
        (limits, adapters): (ForwardLimits, AdapterLimits),
    ) -> Self {
        let limits = limits.sensible();
        let mut listed = Decoder::listed(model, shard);
        let weights = Weighed::of(device, model, &listed);
        let adapted = Adapted::of(device, &Adaptable::of(&mut listed), adapters);
        let mut counter = Counter::new(device);
        count(Buffers::new(&mut counter, model, shard, limits, adapters));
        counter.inputs(&limits.inputs());
        if let Some(limits) = tail::inputs(model, shard, &limits) {
            counter.inputs(&limits);
        }
        let rope = rope_bytes(device, model, limits.positions);
        let Topology {
            world, attention, ..
        } = shard.topology;
        let dp_size = shard.topology.dp_size();
        let gathers = attention.leads() && world.size > 1;
        let gathered = if gathers { model.vocab_size } else { 0 };
        let [full, window] = kv_per_token(device, model, shard, engine.kv_dtype);
        let [state, record] = state_and_record(device, model, shard);
        Self {
            memory: MemoryUse {
                weights: weights.matrices.saturating_add(adapted.matrices),
                vectors: weights.vectors.saturating_add(rope),
                kv_per_token: full,
                kv_window_per_token: window,
                state,
                record,
                activations: counter.activations,
                host: counter.host,
            },
            pass: PassShape {
                recurrences: recurrences(model, shard),
                adapted: adapted.of_rows(limits.max_tokens.saturating_mul(dp_size)),
                gathered: gathered * limits.logit_block_rows,
                latent: latent_heads(
                    model,
                    listed
                        .layers
                        .iter()
                        .filter_map(|layer| layer.mixer.as_ref()),
                ),
                ..pass(
                    limits,
                    dp_size,
                    &weights.projections,
                    listed.head().shape(model),
                    attention_shapes(model, shard),
                    expert_shapes(
                        model,
                        listed.layers.iter().filter_map(|layer| layer.mlp.as_ref()),
                    ),
                )
            },
        }
    }
}

/// Bytes of room for adapters on a device.
struct Adapted {
    matrices: u64,
    /// Sizes beside projections, each once.
    shapes: Vec<AdaptedShape>,
}

impl Adapted {
    fn of(device: &dyn DeviceMemory, projections: &[Adaptable], limits: AdapterLimits) -> Self {
        let (mut matrices, mut shapes) = (0_u64, Vec::new());
        for projection in projections.iter().filter(|_| limits.places > 0) {
            let ups = projection.outputs().into_iter();
            let ups = ups.map(|outputs| Adaptable::up(outputs.len(), limits.rank));
            let all = ups.chain([projection.down(limits.rank)]);
            let bytes = all.map(|shape| device.matrix_bytes(shape));
            let bytes = bytes.fold(0, u64::saturating_add);
            matrices = matrices.saturating_add(bytes.saturating_mul(limits.places.into()));
            let shape = projection.shape(limits);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        Self { matrices, shapes }
    }

    /// Returns the sizes, each with a number of rows.
    fn of_rows(self, rows: usize) -> Vec<(usize, AdaptedShape)> {
        self.shapes.into_iter().map(|shape| (rows, shape)).collect()
    }
}

/// Bytes of a rank's tensors on a device.
struct Weighed {
    matrices: u64,
    vectors: u64,
    /// Shapes of the projections and routers that rows of a pass are multiplied with, each once.
    projections: Vec<MatrixShape>,
}

impl Weighed {
    fn of(device: &dyn DeviceMemory, model: &ModelConfig, tensors: &impl Tensors<Listed>) -> Self {
        let (mut matrices, mut vectors, mut projections) = (0_u64, 0_u64, Vec::new());
        tensors.each(
            |matrix| {
                let shape = matrix.shape(model);
                matrices = matrices.saturating_add(device.matrix_bytes(shape));
                if shape.role != MatrixRole::Vocabulary && !projections.contains(&shape) {
                    projections.push(shape);
                }
            },
            |vector| vectors = vectors.saturating_add(device.vector_bytes(vector.len())),
        );
        Self {
            matrices,
            vectors,
            projections,
        }
    }
}

/// Returns the shape of a pass of `dp_size` DP ranks over `matrices`, and over `head` for a
/// block of logits. Each of `matrices` is charged for the rows of all DP ranks. Attention's
/// products have fewer: the rows of one DP rank.
fn pass(
    limits: ForwardLimits,
    dp_size: usize,
    matrices: &[MatrixShape],
    head: MatrixShape,
    attention: Vec<AttentionShape>,
    experts: Vec<ExpertsShape>,
) -> PassShape {
    let rows = limits.max_tokens.saturating_mul(dp_size);
    let all = matrices.iter().map(|matrix| (rows, *matrix));
    PassShape {
        tokens: limits.max_tokens,
        positions: limits.positions.next_multiple_of(limits.page_size.max(1)),
        attention,
        recurrences: Vec::new(),
        latent: Vec::new(),
        products: all.chain([(limits.logit_block_rows, head)]).collect(),
        adapted: Vec::new(),
        experts: experts.into_iter().map(|experts| (rows, experts)).collect(),
        gathered: 0,
    }
}

/// Drops buffers that were counted while they were made. Counting never fails.
fn count<T>(made: Result<T, lockstep_backend::BackendError>) {
    drop(made);
}

#[cfg(test)]
mod tests;

//! What a rank takes of the memory, known before anything is loaded.

mod draft;

use lockstep_backend::{AttentionShape, DeviceMemory, MatrixRole, MatrixShape, PassShape};
use lockstep_types::{EngineShape, MemoryUse, ModelConfig, RankMemory};

use crate::{
    ForwardLimits, Shard,
    allocate::Counter,
    layer::LayerSizes,
    transformer::{Buffers, kv_shape},
};

/// Bytes that rank `rank` of `engine` takes on `device`. The ranks must divide
/// the model, which configuration checks.
pub fn rank_memory(device: &dyn DeviceMemory, engine: &EngineShape<'_>, rank: usize) -> RankMemory {
    let shard = Shard::of(engine.model, rank, engine.tp_size);
    let limits = ForwardLimits::of_steps(&engine.step, engine.page_size, engine.model.vocab_size);
    let target = Part::of_model(device, engine, engine.model, &shard, limits);
    let mut passes = vec![target.pass];
    let mut draft = draft::kept_of_target(device, engine, rank, limits.max_tokens);
    if rank == 0
        && let Some(part) = draft::part(device, engine)
    {
        draft.weights = part.memory.weights;
        draft.vectors = part.memory.vectors;
        draft.kv_per_token = part.memory.kv_per_token;
        draft.activations = draft.activations.saturating_add(part.memory.activations);
        draft.host = part.memory.host;
        passes.push(part.pass);
    }
    RankMemory {
        target: target.memory,
        draft,
        scratch: device.scratch_bytes(&passes),
    }
}

/// The heads of the first of `ranks` ranks, which must divide the model's.
pub fn rank_heads(model: &ModelConfig, ranks: usize) -> AttentionShape {
    let shard = Shard::of(model, 0, ranks);
    LayerSizes::new(model, &shard, model.hidden_size).attention
}

/// A model on a rank, and its largest pass.
struct Part {
    memory: MemoryUse,
    pass: PassShape,
}

impl Part {
    /// Of a whole model's shard.
    fn of_model(
        device: &dyn DeviceMemory,
        engine: &EngineShape<'_>,
        model: &ModelConfig,
        shard: &Shard,
        limits: ForwardLimits,
    ) -> Self {
        let limits = limits.sensible();
        let layer = LayerSizes::new(model, shard, model.hidden_size);
        let table = table(shard.vocab.len(), model.hidden_size);
        let tables = if model.tie_word_embeddings { 1 } else { 2 };
        let weights = matrices(device, &layer.matrices())
            .saturating_mul(model.num_layers as u64)
            .saturating_add(tables * device.matrix_bytes(table));
        let mut counter = Counter::new(device);
        count(Buffers::new(&mut counter, model, shard, limits));
        counter.inputs(&limits.inputs());
        // The norm before each layer's attention and the last one.
        let vectors = layer_vectors(device, model, shard)
            .saturating_add(device.vector_bytes(model.hidden_size))
            .saturating_mul(model.num_layers as u64)
            .saturating_add(device.vector_bytes(model.hidden_size))
            .saturating_add(device.rope_bytes(limits.positions, model.head_dim / 2));
        let gathers = shard.rank == 0 && shard.size > 1;
        let gathered = if gathers { model.vocab_size } else { 0 };
        Self {
            memory: MemoryUse {
                weights,
                vectors,
                kv_per_token: device.kv_bytes(&kv_shape(model, shard, 1, 1, engine.kv_dtype)),
                activations: counter.activations,
                host: counter.host,
            },
            pass: PassShape {
                gathered: gathered * limits.logit_block_rows,
                ..pass(limits, &layer.matrices(), table, layer.attention)
            },
        }
    }
}

/// A table of tokens.
fn table(rows: usize, hidden: usize) -> MatrixShape {
    MatrixShape {
        rows,
        cols: hidden,
        role: MatrixRole::Vocabulary,
    }
}

/// A pass over `matrices`, and over `head` for a block of logits.
fn pass(
    limits: ForwardLimits,
    matrices: &[MatrixShape],
    head: MatrixShape,
    attention: AttentionShape,
) -> PassShape {
    let all = matrices.iter().map(|matrix| (limits.max_tokens, *matrix));
    PassShape {
        tokens: limits.max_tokens,
        positions: limits.positions.next_multiple_of(limits.page_size.max(1)),
        attention,
        products: all.chain([(limits.logit_block_rows, head)]).collect(),
        gathered: 0,
    }
}

fn matrices(device: &dyn DeviceMemory, matrices: &[MatrixShape]) -> u64 {
    let bytes = matrices.iter().map(|matrix| device.matrix_bytes(*matrix));
    bytes.fold(0, u64::saturating_add)
}

/// Norms and biases of a layer, without the norm before its attention.
fn layer_vectors(device: &dyn DeviceMemory, model: &ModelConfig, shard: &Shard) -> u64 {
    let layer = LayerSizes::new(model, shard, model.hidden_size);
    let hidden = model.hidden_size;
    let leads = shard.rank == 0;
    let vectors = [
        (true, hidden),
        (model.qk_norm, model.head_dim),
        (model.qk_norm, model.head_dim),
        (model.qkv_bias, layer.attention.qkv_width()),
        (model.mlp_bias, 2 * layer.mlp),
        (model.output_bias && leads, hidden),
        (model.mlp_bias && leads, hidden),
    ];
    let present = vectors.into_iter().filter(|(present, _)| *present);
    present.map(|(_, len)| device.vector_bytes(len)).sum()
}

/// Buffers that were counted while they were made; counting never fails.
fn count<T>(made: Result<T, lockstep_backend::BackendError>) {
    drop(made);
}

#[cfg(test)]
mod tests;

//! The tail of a model: its last layers, if all of them read the caches of layers before them, as in
//! Gemma 4's small models. Of what a token leaves in these layers only its own logits are ever read.
//! So where some tokens of a pass want none, as most of a prompt, the tail runs over the others
//! alone, as a batch of its own. Their bits are the same.
//!
//! Ranks would have to agree on the rows of their exchanges, so only a rank alone does that.

use lockstep_backend::{
    Backend, BackendError, Batch, ChainLimits, ChoiceLimits, InputLimits, LogitScaling, Row,
};
use lockstep_types::{LayerSpec, ModelConfig};

use super::Transformer;
use crate::blocks::{
    Norm,
    adapted::{Input, RowAdapters},
};
use crate::{ForwardLimits, ModelCache, Shard};

/// Returns the number of the first layer of the tail; `None` if there is none, or several ranks.
fn first_layer(model: &ModelConfig, shard: &Shard) -> Option<usize> {
    let reads = |layer: &&LayerSpec| layer.attention().is_some_and(|own| own.kv_of.is_some());
    let count = model.layers.iter().rev().take_while(reads).count();
    let alone = shard.topology.world.size == 1;
    (alone && count > 0).then(|| model.layers.len() - count)
}

/// Returns the most tokens that the tail of a model runs over alone: one of each request; `None`
/// without a tail.
pub(crate) fn most_tokens(
    model: &ModelConfig,
    shard: &Shard,
    limits: &ForwardLimits,
) -> Option<usize> {
    first_layer(model, shard).map(|_| limits.requests.clamp(1, limits.max_tokens))
}

/// Returns the limits of the tail's batches; `None` without a tail.
pub(crate) fn inputs(
    model: &ModelConfig,
    shard: &Shard,
    limits: &ForwardLimits,
) -> Option<InputLimits> {
    Some(InputLimits {
        tokens: most_tokens(model, shard, limits)?,
        replays: 0,
        choices: ChoiceLimits::default(),
        chain: ChainLimits::default(),
        ..limits.inputs()
    })
}

/// The wanted tokens of a batch, as a batch of their own for the tail.
pub(super) struct Tail<B: Backend> {
    /// Number of its first layer.
    first: usize,
    /// Most tokens.
    most: usize,
    /// Number of wanted tokens, if the pass runs the tail over these alone.
    rows: Option<usize>,
    inputs: B::Inputs,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    requests: Vec<Row>,
}

impl<B: Backend> Tail<B> {
    /// Allocates room for the tail's batches; `None` for a model without a tail.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        model: &ModelConfig,
        shard: &Shard,
        limits: &ForwardLimits,
    ) -> Result<Option<Self>, BackendError> {
        let first = first_layer(model, shard);
        let Some((first, room)) = first.zip(inputs(model, shard, limits)) else {
            return Ok(None);
        };
        let most = room.tokens;
        Ok(Some(Self {
            first,
            most,
            rows: None,
            inputs: backend.inputs(&room)?,
            tokens: Vec::with_capacity(most),
            positions: Vec::with_capacity(most),
            cells: Vec::with_capacity(most * limits.groups),
            requests: Vec::with_capacity(most),
        }))
    }

    /// Returns the first layer that runs over the wanted tokens alone, and their number, if the
    /// pass does so.
    pub fn begins(&self) -> Option<(usize, usize)> {
        self.rows.map(|rows| (self.first, rows))
    }

    /// Lists the wanted tokens of `batch`. Returns false if they are too many, or not the last ones of
    /// their rows: then they need tokens that are not among them.
    fn list(&mut self, batch: &Batch<'_>) -> bool {
        let wanted = batch.logit_tokens;
        if wanted.len() > self.most {
            return false;
        }
        self.tokens.clear();
        self.positions.clear();
        self.cells.clear();
        self.requests.clear();
        let of = |list: &'_ [u32], token: &u32| list[*token as usize];
        self.tokens
            .extend(wanted.iter().map(|token| of(batch.tokens, token)));
        self.positions
            .extend(wanted.iter().map(|token| of(batch.positions, token)));
        for cells in batch.cells.chunks(batch.tokens.len().max(1)) {
            self.cells
                .extend(wanted.iter().map(|token| of(cells, token)));
        }
        for row in batch.rows {
            let end = row.start + row.q_len;
            let start = wanted.partition_point(|token| *token < row.start);
            let count = wanted.partition_point(|token| *token < end) - start;
            let (start, count) = (start as u32, count as u32);
            if count == 0 {
                continue;
            }
            let are_last = wanted[start as usize] == end - count;
            // A mask has a word for each token of its row.
            if !are_last || (row.mask.is_some() && count < row.q_len) {
                return false;
            }
            self.requests.push(Row {
                start,
                q_len: count,
                kv_len: row.kv_len + row.q_len - count,
                ..*row
            });
        }
        true
    }
}

impl<B: Backend> Transformer<B> {
    /// Stages the wanted tokens of `batch` for the tail, if the model has one and may run it over
    /// these alone.
    ///
    /// # Errors
    /// The errors of staging.
    pub(super) fn stage_tail(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let Some(tail) = &mut self.tail else {
            return Ok(());
        };
        tail.rows = None;
        let wanted = batch.logit_tokens.len();
        // Hidden states are kept of all tokens. What a device drafts it writes to the whole batch.
        let whole = self.capture.is_some() || batch.draft_shape().is_some();
        if whole || wanted == batch.tokens.len() || !tail.list(batch) {
            return Ok(());
        }
        if wanted > 0 {
            let own = Batch {
                tokens: &tail.tokens,
                positions: &tail.positions,
                cells: &tail.cells,
                rows: &tail.requests,
                pages: batch.pages,
                masks: batch.masks,
                ..Batch::default()
            };
            backend.stage(&own, &mut tail.inputs)?;
        }
        tail.rows = Some(wanted);
        Ok(())
    }

    /// Makes passes run all layers over all tokens, until a batch is staged for the tail.
    pub(super) fn end_tail(&mut self) {
        if let Some(tail) = &mut self.tail {
            tail.rows = None;
        }
    }

    /// Runs the tail, from layer `first` on, over the `wanted` tokens. Their normed rows come to the
    /// front of those of all tokens.
    ///
    /// # Errors
    /// The errors of the layers.
    pub(super) fn run_tail(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        (first, wanted): (usize, usize),
    ) -> Result<(), BackendError> {
        let (weights, context) = (&self.weights, &self.context);
        let (all, own) = (&mut self.buffers.layer, &mut self.buffers.tail);
        let (Some(tail), Some(own)) = (&self.tail, own) else {
            return Ok(());
        };
        if wanted == 0 {
            return Ok(());
        }
        own.take_wanted(backend, all, &self.inputs, wanted);
        for (number, layer) in weights.layers.iter().enumerate().skip(first) {
            let input = Input {
                rows: &own.normed,
                places: own.adapters.as_ref().and_then(RowAdapters::own),
            };
            layer.mix(
                backend,
                context,
                input,
                &mut own.mixers,
                cache,
                &tail.inputs,
            )?;
            if let Some((per_layer, buffers)) = layer.per_layer.as_ref().zip(own.per_layer.as_mut())
            {
                per_layer.prepare(backend, buffers);
            }
            let next = weights.norm_before(number + 1).map(Norm::operand);
            layer.finish(backend, context, own.second_half(layer, None), next)?;
            if let Some(factor) = self.model.stream_rescale(number) {
                let scaling = LogitScaling {
                    divisor: factor.recip(),
                    softcap: None,
                };
                backend.scale_logits(&mut own.residual, scaling);
            }
        }
        backend.set_rows(&mut all.normed, wanted);
        backend.place_columns(&own.normed, &mut all.normed, 0);
        Ok(())
    }
}

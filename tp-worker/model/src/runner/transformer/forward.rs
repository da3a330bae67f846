//! The ragged extend: one pass over a batch with rows of any length.

use lockstep_backend::{
    Backend, BackendError, Batch, LogitScaling, PassKey, PassRecords as _, WorldRows, WorldSize,
};

use super::Transformer;
use super::logits::{LogitBlock, LogitSink, Whole};
use super::size::{Rows, Size};
use super::staged::{DraftStaged, Staged};
use super::tail::Tail;
use crate::blocks::{
    Norm,
    adapted::{Input, RowAdapters},
    per_layer, read_stream,
};
use crate::runner::limits::fits;
use crate::split::crossing::Crossing;
use crate::{Exit, ModelCache, ModelError};

impl<B: Backend> Transformer<B> {
    /// Runs `batch`: writes its keys and values into `cache` and hands the logits of
    /// `batch.logit_tokens` to `sink`, block by block in order. Only the lead of the batch's
    /// DP rank gets logits. All ranks of the model's axis must call this together. The ranks
    /// of a DP rank must bring the same batch. Every call must use the same cache.
    ///
    /// `world` counts the rows of all DP ranks and is equal on all ranks. It is `None` with
    /// one DP rank. With several, a DP rank without tokens takes part with an empty batch,
    /// because it computes for the others.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`], [`ModelError::World`] and [`ModelError::NotDataParallel`]
    /// before anything ran, when the batch exceeds the limits or contradicts `world`.
    /// [`ModelError::Backend`] when the device or a collective fails. Nothing is kept of the
    /// pass then, and the cells that it wrote are unspecified.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        batch: &Batch<'_>,
        world: Option<&WorldRows>,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        let world = world.map(WorldSize::from);
        let drafted = &mut |_: &mut B, _: Staged<'_, B>| Ok(());
        self.forward_into(backend, cache, batch, world, drafted, &mut Whole(sink))
    }

    /// Runs [`Self::forward`] into a `sink` that also takes tokens, where the device
    /// [`Self::chooses`] them. The pass then moves the accepted cells of its requests.
    /// `draft` is called after the batch is staged and before its pass.
    ///
    /// # Errors
    /// The errors of [`Self::forward`] and of `draft`.
    pub fn forward_into(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        batch: &Batch<'_>,
        world: Option<WorldSize<'_>>,
        draft: &mut DraftStaged<'_, B>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        self.expect_adapters(batch)?;
        let (size, repeated) = self.size(batch, world)?;
        // All ranks know alike that no rank has anything to compute.
        if size.tokens.all == 0 {
            if let Some(capture) = &mut self.capture {
                capture.begin(backend, 0);
            }
            return Ok(());
        }
        let done = backend.stage(batch, &mut self.inputs).map_err(Into::into);
        let done = done.and_then(|()| draft(backend, self.staged()));
        let done =
            done.and_then(|()| self.run_whole(backend, cache, batch, (size, repeated), sink));
        // States that a failed pass has kept belong to no pass.
        if let (Err(_), Some(capture)) = (&done, &mut self.capture) {
            capture.begin(backend, 0);
        }
        done
    }

    /// Returns the size of the pass, and the size of the recorded pass that may run it, if
    /// there is one. Also sets the rows that cross between DP ranks.
    fn size(
        &mut self,
        batch: &Batch<'_>,
        rows: Option<WorldSize<'_>>,
    ) -> Result<(Size, Option<PassKey>), ModelError> {
        let (tokens, wanted) = (batch.tokens.len(), batch.logit_tokens.len());
        let dp_size = self.shard.topology.dp_size();
        match (&mut self.world, rows) {
            (None, None) => {
                let rows = |own| Rows { own, all: own };
                let size = Size {
                    tokens: rows(tokens),
                    wanted: rows(wanted),
                };
                // If only some logits are wanted, the last layer runs over their rows alone.
                Ok((size, (wanted == tokens).then(|| batch.key())))
            }
            (Some(world), Some(WorldSize::Counted(rows))) => {
                world.set(rows, (tokens, wanted), self.limits.max_tokens)?;
                let rows = |own, crossing: &Crossing| Rows {
                    own,
                    all: crossing.all(),
                };
                let size = Size {
                    tokens: rows(tokens, &world.tokens),
                    wanted: rows(wanted, &world.wanted),
                };
                Ok((size, None))
            }
            (Some(world), Some(WorldSize::Padded(key))) => {
                fits(
                    "tokens of a padded pass",
                    key.tokens,
                    self.limits.max_tokens,
                )?;
                fits("tokens beside padding", tokens, key.tokens)?;
                fits("tokens without logits", tokens.saturating_sub(wanted), 0)?;
                world.set_even(key.tokens);
                Ok((Size::whole(key.tokens, dp_size), Some(key)))
            }
            (None, Some(_)) | (Some(_), None) => Err(ModelError::NotDataParallel { dp_size }),
        }
    }

    /// Runs the pass over a staged batch that has tokens and is within the limits.
    fn run_whole(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        batch: &Batch<'_>,
        (size, repeated): (Size, Option<PassKey>),
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let computed = if let Some(key) = repeated {
            let computed = self.run_repeated(backend, cache, key)?;
            // Rows that a padded pass kept behind the batch's own tokens mean nothing.
            if let Some(capture) = &mut self.capture {
                capture.begin(backend, batch.tokens.len());
            }
            computed
        } else {
            self.set_rows(backend, size);
            self.stage_tail(backend, batch)?;
            let done = self.run(backend, cache, size);
            self.end_tail();
            done?;
            false
        };
        self.logits(backend, cache, batch, size, computed, sink)
    }

    /// Returns the smallest recorded pass for a step to which no DP rank brings more than
    /// `most`. Each DP rank wants all of its logits: see [`WorldSize::Padded`]. `None` if no pass
    /// has room. Example: of passes of 8 and 16 tokens, 11 tokens run in the pass of 16.
    pub fn repeats(&self, backend: &B, most: PassKey) -> Option<PassKey> {
        backend.holding(most, self.shard.topology.dp_size(), &self.inputs)
    }

    /// Runs a staged batch of the size `key` as a pass that the device may repeat. The batch
    /// must want all logits, and the rows that cross must be set before. If the logits are
    /// one block, the pass also computes them, and chooses from them unless passes are
    /// [cut](Self::set_cut). Returns true in that case.
    fn run_repeated(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        key: PassKey,
    ) -> Result<bool, BackendError> {
        let padded = backend.pad(key, &mut self.inputs);
        let dp_size = self.shard.topology.dp_size();
        let size = Size::whole(padded.tokens, dp_size);
        let block = size.wanted.all <= self.limits.logit_block_rows;
        self.set_rows(backend, size);
        if block {
            backend.set_rows(&mut self.buffers.logits, size.wanted.all);
        }
        let mut passes = std::mem::take(&mut self.passes);
        let model = &mut *self;
        let mut work = |backend: &mut B| {
            model.run(backend, cache, size)?;
            if block {
                model.head(backend, size)?;
            }
            if block && !model.cut {
                model.choose(backend, &(0..size.wanted.all), size.wanted.all)?;
                model.accept(backend, cache);
            }
            Ok(())
        };
        let done = backend.pass(&mut passes, padded, &mut work);
        self.passes = passes;
        let size = Size::whole(key.tokens, dp_size);
        self.set_rows(backend, size);
        if block {
            backend.set_rows(&mut self.buffers.logits, size.wanted.all);
        }
        done.map(|()| block)
    }

    /// Makes the device record the passes that it will repeat, so that none is recorded while
    /// requests wait. `each` is called with the number of passes left. Must not be called
    /// while hidden states or logits of a pass are still needed.
    ///
    /// # Errors
    /// [`ModelError::Backend`] when the device fails, or has no room for the passes.
    pub fn record(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        let sizes = backend.repeated(&self.inputs);
        for (done, key) in sizes.iter().enumerate() {
            backend.stage(&Batch::default(), &mut self.inputs)?;
            if let Some(world) = &mut self.world {
                world.set_even(key.tokens);
            }
            self.run_repeated(backend, cache, *key)?;
            backend.arrive()?;
            each(sizes.len() - done - 1);
        }
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, 0);
        }
        Ok(())
    }

    /// Returns true if the device repeats all passes that it has recorded of this model as
    /// they are.
    pub fn keeps_passes(&self, backend: &B) -> bool {
        backend.keeps(&self.passes)
    }

    /// Gives up the recorded passes of this model, so that they are recorded anew.
    pub fn forget_passes(&mut self) {
        self.passes = B::Passes::planned(self.passes.plans().to_vec());
    }

    /// Sets the row count of all buffers that a pass writes.
    pub(super) fn set_rows(&mut self, backend: &mut B, size: Size) {
        let layer = &mut self.buffers.layer;
        layer.set_rows(backend, size.tokens.own, size.tokens.all);
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, size.tokens.own);
        }
    }

    /// Exchanges notes and drafts, then runs embedding and layers over the staged batch.
    pub(super) fn run(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        size: Size,
    ) -> Result<(), BackendError> {
        self.exchange_notes(backend)?;
        self.exchange_drafts(backend, size.tokens.own)?;
        let b = &mut self.buffers.layer;
        let first = self.shard.embedding.start as u32;
        let multipliers = self.model.multipliers;
        backend.embed(
            &self.weights.embedding,
            first,
            // The stream is kept divided by the factor of what blocks add to it.
            multipliers.embedding / multipliers.residual,
            &self.inputs,
            &mut b.residual,
        );
        // With several DP ranks, every rank holds the whole embedding.
        if self.world.is_none() {
            backend.all_reduce(self.context.axis, &mut b.residual)?;
        }
        if let (Some(own), Some(table), Some(buffers)) = (
            &self.model.per_layer,
            &self.weights.per_layer,
            &mut b.per_layer,
        ) {
            let inputs = &self.inputs;
            per_layer::look_up(backend, (table, own), first, inputs, buffers);
            if self.world.is_none() {
                backend.all_reduce(self.context.axis, &mut buffers.embedded)?;
            }
            backend.place_columns(&b.residual, &mut buffers.first, 0);
        }
        let tokens = self.world.as_ref().map(|world| &world.tokens);
        if let Some(own) = &mut b.adapters {
            let (axis, count) = (self.context.axis, size.tokens.own);
            own.begin(backend, axis, &self.inputs, count, tokens)?;
        }
        let norm = self.weights.norm_before(0);
        read_stream(backend, norm, &mut b.residual, &mut b.normed);
        let tail = self.tail.as_ref().and_then(Tail::begins);
        let end = tail.map_or(self.weights.layers.len(), |(first, _)| first);
        for number in 0..end {
            self.layer(backend, cache, number, size)?;
        }
        if let Some(tail) = tail {
            return self.run_tail(backend, cache, tail);
        }
        if let Some(capture) = &mut self.capture {
            capture.last_hidden(backend, &self.buffers.layer.normed);
        }
        Ok(())
    }

    /// Runs layer `number`. The pass's [`Exit`] says over which tokens the second half of the
    /// last layer runs. It does not run if no rank wants logits.
    fn layer(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        number: usize,
        size: Size,
    ) -> Result<(), BackendError> {
        let narrow = number + 1 == self.weights.layers.len() && self.exit() == Exit::Logits;
        let (weights, context, inputs) = (&self.weights, &self.context, &self.inputs);
        let layer = &weights.layers[number];
        let b = &mut self.buffers;
        if let Some(capture) = &mut self.capture {
            capture.layer_input(backend, number, &b.layer.residual);
        }
        let input = Input {
            rows: &b.layer.normed,
            places: b.layer.adapters.as_ref().and_then(RowAdapters::own),
        };
        layer.mix(backend, context, input, &mut b.layer.mixers, cache, inputs)?;
        let next = weights.norm_before(number + 1).map(Norm::operand);
        let (rows, crossing): (_, Option<&Crossing>) = match (&self.world, narrow) {
            (Some(world), true) => (size.wanted, Some(&world.wanted)),
            (Some(world), false) => (size.tokens, Some(&world.tokens)),
            (None, true) => (size.wanted, None),
            (None, false) => (size.tokens, None),
        };
        if rows.all == 0 {
            return Ok(());
        }
        if let Some((own, buffers)) = layer.per_layer.as_ref().zip(b.layer.per_layer.as_mut()) {
            own.prepare(backend, buffers);
        }
        if let (true, Some(own)) = (narrow, &mut b.layer.adapters) {
            own.narrow(backend, context.axis, inputs, rows.own, crossing)?;
        }
        if rows.own < size.tokens.own {
            let mixed = &mut b.mixed_wanted;
            let half = b
                .layer
                .narrow(backend, layer, inputs, rows.own, mixed, crossing);
            layer.finish(backend, context, half, next)?;
            b.layer.set_rows(backend, size.tokens.own, size.tokens.all);
            return Ok(());
        }
        if narrow && crossing.is_some() {
            b.layer.set_mlp_rows(backend, rows.all);
        }
        let half = b.layer.second_half(layer, crossing);
        layer.finish(backend, context, half, next)?;
        if let Some(factor) = self.model.stream_rescale(number) {
            let scaling = LogitScaling {
                divisor: factor.recip(),
                softcap: None,
            };
            backend.scale_logits(&mut b.layer.residual, scaling);
        }
        Ok(())
    }
}

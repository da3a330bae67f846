//! The ragged extend.

use lockstep_backend::{Backend, BackendError, Batch, PassKey, PassRecords as _, World, WorldRows};

use super::Transformer;
use super::logits::{LogitBlock, LogitSink, Whole};
use super::size::{Rows, Size};
use super::staged::{DraftStaged, Staged};
use crate::ModelError;
use crate::runner::limits::fits;
use crate::split::crossing::Crossing;

impl<B: Backend> Transformer<B> {
    /// Runs `batch`: writes its keys and values into `cache` and hands the
    /// logits of `batch.logit_tokens` to `sink`, block by block in order, on
    /// the rank alone that leads those of its DP rank. All ranks of its axis must
    /// call it together, those of a DP rank with the same batch, and in every call
    /// with the same cache.
    ///
    /// `world` says what all DP ranks bring, the same on all ranks, and is `None`
    /// where there is one. With several, a DP rank without tokens takes part with
    /// an empty batch: it computes for the others.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`], [`ModelError::World`] and
    /// [`ModelError::NotDataParallel`] before anything ran when the batch exceeds
    /// the limits or contradicts `world`; [`ModelError::Backend`] when the device
    /// or a collective fails: nothing is kept of the pass then, and what it wrote
    /// of the cache is unspecified.
    pub fn forward(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        world: Option<&WorldRows>,
        sink: &mut dyn FnMut(LogitBlock<'_>),
    ) -> Result<(), ModelError> {
        let world = world.map(World::from);
        let drafted = &mut |_: &mut B, _: Staged<'_, B>| Ok(());
        self.forward_into(backend, cache, batch, world, drafted, &mut Whole(sink))
    }

    /// [`Self::forward`] into a `sink` that takes tokens, too, where the device
    /// [`Self::chooses`] them. Its pass then moves the accepted cells of its requests.
    /// Between the batch's way to the device and its pass, `draft` is called.
    ///
    /// # Errors
    /// Those of [`Self::forward`], and of `draft`.
    pub fn forward_into(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        world: Option<World<'_>>,
        draft: &mut DraftStaged<'_, B>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        let (size, repeated) = self.size(batch, world)?;
        // What all ranks know alike: nobody has anything to compute.
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
        // What it has kept so far is no pass's.
        if let (Err(_), Some(capture)) = (&done, &mut self.capture) {
            capture.begin(backend, 0);
        }
        done
    }

    /// The pass' size, and that of the pass that the device may repeat for it, if there
    /// is one; sets how its rows cross.
    fn size(
        &mut self,
        batch: &Batch<'_>,
        rows: Option<World<'_>>,
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
                // Where only some logits are wanted, the last layer's width follows them.
                Ok((size, (wanted == tokens).then(|| batch.key())))
            }
            (Some(world), Some(World::Counted(rows))) => {
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
            (Some(world), Some(World::Padded(key))) => {
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

    /// [`Self::forward`] of a batch that has tokens, within the limits, and is staged.
    fn run_whole(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        (size, repeated): (Size, Option<PassKey>),
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let computed = if let Some(key) = repeated {
            let computed = self.run_repeated(backend, cache, key)?;
            // Behind the batch's own tokens a padded pass has kept anything.
            if let Some(capture) = &mut self.capture {
                capture.begin(backend, batch.tokens.len());
            }
            computed
        } else {
            self.set_rows(backend, size);
            self.run(backend, cache, size)?;
            false
        };
        self.logits(backend, cache, batch, size, computed, sink)
    }

    /// The size of the pass that the device repeats for a step of which no DP rank brings
    /// more than `most`, and each wants the logits of all that it brings: see
    /// [`World::Padded`]. `None` where it repeats none that holds that.
    pub fn repeats(&self, backend: &B, most: PassKey) -> Option<PassKey> {
        backend.holding(most, self.shard.topology.dp_size(), &self.inputs)
    }

    /// [`Self::run`] over a batch of the size `key`, which wants all logits and is staged,
    /// as a pass that the device may repeat. Where they are one block, it computes
    /// them too, and chooses from them; whether it did. How rows cross, is set.
    fn run_repeated(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
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

    /// Has the device record the passes that it will repeat, so that none of them has
    /// to be while requests wait; `each` hears how many there are left. Not while
    /// hidden states or logits of a pass are still needed.
    ///
    /// # Errors
    /// [`ModelError::Backend`] where the device fails, or has no room for them.
    pub fn record(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
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

    /// Whether the device repeats all that it has recorded of this model as it is.
    pub fn keeps_passes(&self, backend: &B) -> bool {
        backend.keeps(&self.passes)
    }

    /// Gives up what is recorded of this model, so that it is recorded anew.
    pub fn forget_passes(&mut self) {
        self.passes = B::Passes::planned(self.passes.plans().to_vec());
    }

    /// Sets the row count of all that a pass writes.
    pub(super) fn set_rows(&mut self, backend: &mut B, size: Size) {
        let layer = &mut self.buffers.layer;
        layer.set_rows(backend, size.tokens.own, size.tokens.all);
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, size.tokens.own);
        }
    }

    /// Embedding and layers, over the batch that is staged.
    pub(super) fn run(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        size: Size,
    ) -> Result<(), BackendError> {
        self.exchange_notes(backend)?;
        self.exchange_drafts(backend, size.tokens.own)?;
        let b = &mut self.buffers.layer;
        let first = self.shard.embedding.start as u32;
        backend.embed(
            &self.weights.embedding,
            first,
            &self.inputs,
            &mut b.residual,
        );
        // With several DP ranks every rank has whole rows.
        if self.world.is_none() {
            backend.all_reduce(self.context.axis, &mut b.residual)?;
        }
        let norm = self.weights.norm_before(0);
        norm.run(backend, &b.residual, &mut b.normed);
        for number in 0..self.weights.layers.len() {
            self.layer(backend, cache, number, size)?;
        }
        if let Some(capture) = &mut self.capture {
            capture.last_hidden(backend, &self.buffers.layer.normed);
        }
        Ok(())
    }

    /// Runs layer `number`; the second half of the last one over the wanted
    /// tokens alone where nothing else is asked of it, and not at all where no
    /// rank wants logits.
    fn layer(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        number: usize,
        size: Size,
    ) -> Result<(), BackendError> {
        let narrow = number + 1 == self.weights.layers.len() && !self.keeps_last_hidden();
        let (weights, context, inputs) = (&self.weights, &self.context, &self.inputs);
        let layer = &weights.layers[number];
        let b = &mut self.buffers;
        if let Some(capture) = &mut self.capture {
            capture.layer_input(backend, number, &b.layer.residual);
        }
        let attention = &mut b.layer.attention[layer.attention.buffers];
        layer
            .attention
            .run(backend, context, &b.layer.normed, attention, cache, inputs);
        let next = weights.norm_before(number + 1).operand();
        let (rows, crossing): (_, Option<&Crossing>) = match (&self.world, narrow) {
            (Some(world), true) => (size.wanted, Some(&world.wanted)),
            (Some(world), false) => (size.tokens, Some(&world.tokens)),
            (None, true) => (size.wanted, None),
            (None, false) => (size.tokens, None),
        };
        if rows.all == 0 {
            return Ok(());
        }
        if rows.own < size.tokens.own {
            let attended = &mut b.attended_wanted;
            let half = b
                .layer
                .narrow(backend, layer, inputs, rows.own, attended, crossing);
            layer.finish(backend, context, half, next)?;
            b.layer.set_rows(backend, size.tokens.own, size.tokens.all);
            return Ok(());
        }
        if narrow && crossing.is_some() {
            b.layer.set_mlp_rows(backend, rows.all);
        }
        let half = b.layer.second_half(layer, crossing);
        layer.finish(backend, context, half, next)
    }
}

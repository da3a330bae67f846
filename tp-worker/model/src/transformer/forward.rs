//! The ragged extend.

use lockstep_backend::{Backend, BackendError, Batch, PassKey, WorldRows};

use super::Transformer;
use super::logits::{LogitBlock, LogitSink, Whole};
use super::size::{Rows, Size};
use super::staged::{DraftStaged, Staged};
use crate::ModelError;
use crate::crossing::Crossing;

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
        world: Option<&WorldRows>,
        draft: &mut DraftStaged<'_, B>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        self.limits.check(batch)?;
        let size = self.size(batch, world)?;
        // What all ranks know alike: nobody has anything to compute.
        if size.tokens.all == 0 {
            if let Some(capture) = &mut self.capture {
                capture.begin(backend, 0);
            }
            return Ok(());
        }
        let done = backend.stage(batch, &mut self.inputs).map_err(Into::into);
        let done = done.and_then(|()| draft(backend, self.staged()));
        let done = done.and_then(|()| self.run_whole(backend, cache, batch, size, sink));
        // What it has kept so far is no pass's.
        if let (Err(_), Some(capture)) = (&done, &mut self.capture) {
            capture.begin(backend, 0);
        }
        done
    }

    /// The pass' size, and how its rows cross.
    fn size(&mut self, batch: &Batch<'_>, rows: Option<&WorldRows>) -> Result<Size, ModelError> {
        let (tokens, wanted) = (batch.tokens.len(), batch.logit_tokens.len());
        let [mut all_tokens, mut all_wanted] = [tokens, wanted];
        match (&mut self.world, rows) {
            (None, None) => {}
            (Some(world), Some(rows)) => {
                world.set(rows, (tokens, wanted), self.limits.max_tokens)?;
                (all_tokens, all_wanted) = (world.tokens.all(), world.wanted.all());
            }
            (None, Some(_)) | (Some(_), None) => {
                let dp_size = self.shard.topology.dp_size();
                return Err(ModelError::NotDataParallel { dp_size });
            }
        }
        let rows = |own, all| Rows { own, all };
        Ok(Size {
            tokens: rows(tokens, all_tokens),
            wanted: rows(wanted, all_wanted),
        })
    }

    /// [`Self::forward`] of a batch that has tokens, within the limits, and is staged.
    fn run_whole(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        batch: &Batch<'_>,
        size: Size,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        // Where only some logits are wanted, the last layer's width follows them,
        // and with several DP ranks the MLPs' heights follow those of all.
        let computed = if size.wanted.own == size.tokens.own && size.is_own() {
            self.run_repeated(backend, cache, batch.key())?
        } else {
            self.set_rows(backend, size);
            self.run(backend, cache, size)?;
            false
        };
        self.logits(backend, cache, batch, size, computed, sink)
    }

    /// [`Self::run`] over a batch of the size `key`, which wants all logits and is staged,
    /// as a pass that the device may repeat. Where they are one block, it computes
    /// them too, and chooses from them; whether it did.
    fn run_repeated(
        &mut self,
        backend: &mut B,
        cache: &mut B::KvCache,
        key: PassKey,
    ) -> Result<bool, BackendError> {
        let padded = backend.pad(key, &mut self.inputs);
        let size = Size::whole(padded.tokens);
        let block = padded.tokens <= self.limits.logit_block_rows && self.world.is_none();
        self.set_rows(backend, size);
        if block {
            backend.set_rows(&mut self.buffers.logits, padded.tokens);
        }
        let mut passes = std::mem::take(&mut self.passes);
        let model = &mut *self;
        let mut work = |backend: &mut B| {
            model.run(backend, cache, size)?;
            if block {
                model.head(backend);
                model.choose(backend, 0);
                model.accept(backend, cache);
            }
            Ok(())
        };
        let done = backend.pass(&mut passes, padded, &mut work);
        self.passes = passes;
        self.set_rows(backend, Size::whole(key.tokens));
        if block {
            backend.set_rows(&mut self.buffers.logits, key.tokens);
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
            self.run_repeated(backend, cache, *key)?;
            backend.arrive()?;
            each(sizes.len() - done - 1);
        }
        if let Some(capture) = &mut self.capture {
            capture.begin(backend, 0);
        }
        Ok(())
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
        let b = &mut self.buffers.layer;
        let (first, eps) = (self.shard.embedding.start as u32, self.model.rms_norm_eps);
        backend.embed(&self.embedding, first, &self.inputs, &mut b.residual);
        // With several DP ranks every rank has whole rows.
        if self.world.is_none() {
            backend.all_reduce(self.shape.axis, &mut b.residual)?;
        }
        let norm = self.input_norms.first().unwrap_or(&self.norm);
        backend.rms_norm(&b.residual, norm, eps, &mut b.normed);
        for number in 0..self.layers.len() {
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
        let narrow = number + 1 == self.layers.len() && !self.keeps_last_hidden();
        let (layer, shape, inputs) = (&self.layers[number], &self.shape, &self.inputs);
        let b = &mut self.buffers;
        if let Some(capture) = &mut self.capture {
            capture.layer_input(backend, number, &b.layer.residual);
        }
        let attention = &mut b.layer.attention;
        layer.attend(backend, shape, &b.layer.normed, attention, cache, inputs);
        let next_norm = self.input_norms.get(number + 1).unwrap_or(&self.norm);
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
                .narrow(backend, inputs, rows.own, attended, crossing);
            layer.finish(backend, shape, half, next_norm)?;
            b.layer.set_rows(backend, size.tokens.own, size.tokens.all);
            return Ok(());
        }
        if narrow && crossing.is_some() {
            b.layer.set_mlp_rows(backend, rows.all);
        }
        layer.finish(backend, shape, b.layer.second_half(crossing), next_norm)
    }
}

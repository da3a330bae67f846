//! From logits to tokens, where a device chooses them.

use std::ops::Range;

use lockstep_backend::{Backend, BackendError, Batch, CollectiveCall, Owners, PassKey};

use super::{LogitSink, Transformer, notes};
use crate::{ModelCache, ModelError, split::topology::attention_axis};

impl<B: Backend> Transformer<B> {
    /// Returns true if the columns of logits are gathered on the devices of leads.
    fn collects(&self) -> bool {
        self.chooses && self.shard.topology.world.size > 1
    }

    /// Returns true if masks of rows can come to the device that chooses from them: it is the
    /// only one.
    pub fn may_mask(&self) -> bool {
        self.chooses && self.shard.topology.world.size == 1
    }

    /// Makes recorded passes end with the logits, if `cut` is true, so that the host can make
    /// masks while the layers run. Otherwise passes choose, too. Passes that were recorded in
    /// the other form must be forgotten.
    pub fn set_cut(&mut self, cut: bool) {
        self.cut = cut && self.may_mask();
    }

    /// Applies the masks of `sink` to a block of the `wanted` rows of logits. The layers may
    /// still run when `sink` makes them.
    pub(super) fn mask(
        &mut self,
        backend: &mut B,
        block: &Range<usize>,
        wanted: usize,
        sink: &mut dyn LogitSink,
    ) {
        let masks = sink.masks();
        if masks.rows.is_empty() {
            return;
        }
        let own = self.own(block, wanted);
        if let (true, Some(device)) = (self.may_mask(), backend.sampler()) {
            device.mask(&mut self.buffers.logits, own.start, masks);
        }
    }

    /// Chooses tokens from a block of the `wanted` rows of logits, if the device chooses.
    /// With several ranks, each lead chooses from its own rows, which are gathered on its
    /// device.
    ///
    /// # Errors
    /// [`BackendError::Collective`] when a peer is gone.
    pub(super) fn choose(
        &mut self,
        backend: &mut B,
        block: &Range<usize>,
        wanted: usize,
    ) -> Result<(), BackendError> {
        let own = self.own(block, wanted);
        let (collects, b) = (self.collects(), &mut self.buffers);
        let mut whole = b.whole.as_mut().filter(|_| !own.is_empty());
        if let Some(both) = &mut whole {
            both.iter_mut()
                .for_each(|rows| backend.set_rows(rows, own.len()));
        }
        let Some(device) = backend.sampler().filter(|_| self.chooses) else {
            return Ok(());
        };
        if !collects {
            device.choose(&mut b.logits, own.start, &mut self.inputs);
            return Ok(());
        }
        let owners = Owners {
            widths: &self.vocab_widths,
            rows: &self.owned,
        };
        let axis = self.context.axis;
        match whole {
            Some([rows, space]) => {
                device.gather(axis, &b.logits, owners, Some((&mut *rows, space)))?;
                device.choose(rows, own.start, &mut self.inputs);
            }
            None => device.gather(axis, &b.logits, owners, None)?,
        }
        Ok(())
    }

    /// Verifies drafts by the chosen tokens, if the device chose them.
    pub(super) fn accept(&mut self, backend: &mut B, cache: &mut ModelCache<B>) {
        if let (true, Some(device)) = (self.chooses, backend.sampler()) {
            device.accept(&mut self.inputs, cache.all());
        }
    }

    /// Waits for the pass, and hands out the outcomes of the requests that the device chose
    /// for.
    pub(super) fn outcomes(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let choices = &batch.choices;
        let own = (0..choices.choices.len()).any(|request| !choices.is_hosts(request));
        match backend.sampler() {
            Some(device) if self.chooses && own => {
                let chosen = device.outcomes(&mut self.inputs)?;
                notes::check(self.notes.is_some(), backend)?;
                sink.outcomes(chosen);
            }
            // Ranks that read nothing have not waited yet for the exchanges of the pass.
            _ if self.collects() => {
                backend.arrive()?;
                notes::check(self.notes.is_some(), backend)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the exchanges that choosing takes in a recorded pass of the size `key`. All
    /// logits of the pass are wanted.
    pub(super) fn chosen_exchanges(&self, key: PassKey) -> Vec<CollectiveCall> {
        let topology = self.shard.topology;
        let rows = key.tokens * topology.dp_size();
        // Logits of several blocks are exchanged behind the recorded pass.
        if !self.collects() || rows > self.limits.logit_block_rows {
            return Vec::new();
        }
        let size = topology.attention.size;
        let owned = |rank: usize| match rank % size {
            0 => rank / size * key.tokens..(rank / size + 1) * key.tokens,
            _ => 0..0,
        };
        let owned: Vec<_> = (0..topology.world.size).map(owned).collect();
        let owners = Owners {
            widths: &self.vocab_widths,
            rows: &owned,
        };
        let limits = self.limits.inputs();
        let requests = limits.choices.requests.min(key.requests);
        let words = limits.choices.outcome_words(requests, limits.drafts());
        let told = match size {
            1 => None,
            _ => CollectiveCall::tell(attention_axis(self.context.axis), words),
        };
        CollectiveCall::collect(self.context.axis, owners)
            .chain(told)
            .collect()
    }
}

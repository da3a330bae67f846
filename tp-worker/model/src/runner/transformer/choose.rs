//! From logits to tokens, where a device chooses them.

use std::ops::Range;

use lockstep_backend::{Backend, BackendError, Batch, Exchanged, Owners, PassKey};

use super::{LogitSink, Transformer, notes};
use crate::{ModelError, split::topology::attention_axis};

impl<B: Backend> Transformer<B> {
    /// Whether the columns of logits come together on the devices of ranks that lead.
    fn collects(&self) -> bool {
        self.chooses && self.shard.topology.world.size > 1
    }

    /// Chooses from a block of the `wanted` rows of logits, where the device does: of
    /// several ranks those that lead, each from its own, which come to them.
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
        let Some(device) = backend.chooser().filter(|_| self.chooses) else {
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

    /// Verifies drafts by what was chosen, where the device did.
    pub(super) fn accept(&mut self, backend: &mut B, cache: &mut B::KvCache) {
        if let (true, Some(device)) = (self.chooses, backend.chooser()) {
            device.accept(&mut self.inputs, cache);
        }
    }

    /// Waits for the pass, and for what became of the device's requests, if there are any.
    pub(super) fn outcomes(
        &mut self,
        backend: &mut B,
        batch: &Batch<'_>,
        sink: &mut dyn LogitSink,
    ) -> Result<(), ModelError> {
        let choices = &batch.choices;
        let own = (0..choices.choices.len()).any(|request| !choices.is_hosts(request));
        match backend.chooser() {
            Some(device) if self.chooses && own => {
                let chosen = device.outcomes(&mut self.inputs)?;
                notes::check(self.notes.is_some(), backend)?;
                sink.outcomes(chosen);
            }
            // Ranks that read nothing have not waited for what they told each other.
            _ if self.collects() => {
                backend.arrive()?;
                notes::check(self.notes.is_some(), backend)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// What ranks exchange by that in a pass of the size `key` that is recorded, of which
    /// all logits are wanted.
    pub(super) fn chosen_exchanges(&self, key: PassKey) -> Vec<Exchanged> {
        let topology = self.shard.topology;
        let rows = key.tokens * topology.dp_size();
        // Logits of several blocks follow behind what is recorded.
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
            _ => Exchanged::tell(attention_axis(self.context.axis), words),
        };
        Exchanged::collect(self.context.axis, owners)
            .chain(told)
            .collect()
    }
}

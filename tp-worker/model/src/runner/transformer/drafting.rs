//! Drafting on the device by a whole model: chains, and the levels of trees.

mod broadcast;
mod trees;

use lockstep_backend::{Backend, BackendError};

use super::Transformer;
use super::size::{Rows, Size};
use crate::{DraftPasses, ModelCache, ModelError, runner::draft_passes::DraftPassSize};

impl<B: Backend> Transformer<B> {
    /// Queues the passes that draft the `count` chains or trees of the batch staged in
    /// `verified`. The deepest one has `depth` levels. See [`lockstep_backend::DeviceDrafter`]
    /// and [`lockstep_backend::DeviceTreeDrafter`]. The model must be whole on this rank, and its
    /// device must draft by itself; otherwise nothing is drafted.
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn draft_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        (count, depth): (usize, usize),
        verified: &mut B::Inputs,
    ) -> Result<(), ModelError> {
        let size = chains.size(count, depth);
        Ok(self.run_chains(backend, cache, chains, size, verified)?)
    }

    /// Records the passes of chains, like [`Self::record`]. The staged batch has no chains.
    ///
    /// # Errors
    /// [`ModelError::Backend`].
    pub fn record_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        verified: &mut B::Inputs,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        let sizes = chains.begin(backend, &self.inputs, &self.limits);
        for (done, size) in sizes.iter().enumerate() {
            self.run_chains(backend, cache, chains, *size, verified)?;
            each(sizes.len() - done - 1);
        }
        Ok(())
    }

    fn run_chains(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        chains: &mut DraftPasses<B>,
        DraftPassSize { key, levels }: DraftPassSize,
        verified: &mut B::Inputs,
    ) -> Result<(), BackendError> {
        if chains.branches() > 1 {
            return self.run_trees(
                backend,
                cache,
                chains,
                DraftPassSize { key, levels },
                verified,
            );
        }
        let (first, model) = (chains.first(), &mut *self);
        let mut work = |backend: &mut B| {
            if let Some(device) = backend.drafter() {
                device.begin(verified, &mut model.inputs, key, first);
            }
            for level in 0..levels {
                let own = if level == 0 { first } else { 1 };
                model.draft_level(backend, cache, own * key.tokens, key.tokens)?;
                if let Some(device) = backend.drafter() {
                    let (logits, inputs) = (&model.buffers.logits, &mut model.inputs);
                    device.advance((logits, None), level, verified, inputs, key);
                }
            }
            Ok(())
        };
        backend.pass(&mut chains.passes, key, &mut work)
    }

    /// Runs the pass over `tokens` staged tokens, up to the logits of `wanted` of them.
    pub(super) fn draft_level(
        &mut self,
        backend: &mut B,
        cache: &mut ModelCache<B>,
        tokens: usize,
        wanted: usize,
    ) -> Result<(), BackendError> {
        let rows = |count| Rows {
            own: count,
            all: count,
        };
        let size = Size {
            tokens: rows(tokens),
            wanted: rows(wanted),
        };
        self.set_rows(backend, size);
        self.run(backend, cache, size)?;
        backend.set_rows(&mut self.buffers.layer.normed, wanted);
        backend.set_rows(&mut self.buffers.logits, wanted);
        self.head(backend, size)
    }
}

//! Chains and trees of the whole model, drafted by the device.

use lockstep_backend::Backend;
use lockstep_model::{ModelError, Staged};

use super::{Model, StandaloneDrafter};
use crate::{
    ChainPass, Device, DraftError, DraftRow, Drafts, DraftsOnDevice,
    propose::{Proposer, layout::Drafted},
};

impl<B: Backend> StandaloneDrafter<B> {
    fn vocab(&self) -> usize {
        Proposer::<B>::vocab(&self.model)
    }
}

impl<B: Backend> DraftsOnDevice<B> for StandaloneDrafter<B> {
    fn lay_out(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
        chains: &mut ChainPass,
    ) -> Result<bool, DraftError> {
        let fit = self
            .chains
            .fit(&self.model.transformer.limits(), rows.len());
        if !fit || !self.chains.serve(device.backend, self.vocab()) {
            return Ok(false);
        }
        self.begin(device, rows)?;
        let own = Drafted {
            first_cell: Proposer::<B>::first_cell(&self.model),
            vocab: self.vocab(),
        };
        own.begin(&self.rows, drafts, chains);
        let (seen, model) = (&self.rows, &mut self.model);
        // No request is far behind now. The tokens taken in are final, except for the last
        // token, which the target has not computed yet.
        chains.fill(|at, pass, _| {
            let (row, pages) = (&rows[at], seen[at].pages_start);
            model.push_last(device, row.slot, pages, row.kv_len, pass);
        });
        self.note(rows, drafts);
        Ok(true)
    }

    fn run(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        chains: &ChainPass,
    ) -> Result<(), ModelError> {
        let Model {
            transformer, cache, ..
        } = &mut self.model;
        let (size, chains) = (chains.size(), &mut self.chains);
        transformer.draft_chains(backend, cache, chains, size, staged.inputs)
    }

    fn record(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        if !self.chains.serve(backend, self.vocab()) {
            return Ok(());
        }
        let Model {
            transformer, cache, ..
        } = &mut self.model;
        transformer.record_chains(backend, cache, &mut self.chains, staged.inputs, each)
    }
}

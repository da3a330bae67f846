//! The guard for chains that the device drafts.

use lockstep_backend::Backend;
use lockstep_model::{ModelError, Staged};

use super::Guard;
use crate::{ChainPass, Device, DraftError, DraftRow, Drafts, DraftsOnDevice};

const GONE: &str = "what drafts on the device once always does";

impl<B: Backend> Guard<B> {
    /// Returns the guarded drafter. It said before that it drafts chains.
    fn chains(&mut self) -> Option<&mut dyn DraftsOnDevice<B>> {
        self.drafter.on_device()
    }
}

impl<B: Backend> DraftsOnDevice<B> for Guard<B> {
    fn lay_out(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
        chains: &mut ChainPass,
    ) -> Result<bool, DraftError> {
        let laid_out = match self.chains() {
            Some(drafter) => drafter.lay_out(device, rows, drafts, chains)?,
            None => return self.rules(GONE),
        };
        if !laid_out && (0..rows.len()).any(|at| !drafts.nodes(at).is_empty()) {
            return self.rules("what is not laid out has no nodes");
        }
        Ok(laid_out)
    }

    fn settle(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let drafter = self.chains();
        drafter.map_or(Ok(()), |drafter| drafter.settle(device))
    }

    fn run(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        chains: &ChainPass,
    ) -> Result<(), ModelError> {
        let drafter = self.chains();
        drafter.map_or(Ok(()), |drafter| drafter.run(backend, staged, chains))
    }

    fn drafted(&mut self, rows: &[DraftRow], drafts: &Drafts) -> Result<(), DraftError> {
        self.check(rows, drafts)?;
        self.finder.take(drafts);
        self.chains()
            .map_or(Ok(()), |chains| chains.drafted(rows, drafts))
    }

    fn record(
        &mut self,
        backend: &mut B,
        staged: Staged<'_, B>,
        each: &mut dyn FnMut(usize),
    ) -> Result<(), ModelError> {
        let chains = self.chains();
        chains.map_or(Ok(()), |chains| chains.record(backend, staged, each))
    }
}

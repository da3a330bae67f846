//! Drafts that the device of a DP rank's lead makes, and tells those of its other ranks as a
//! pass begins: no host comes between.

use lockstep_backend::{Backend, BackendError, Exchanged, PassKey};

use super::Transformer;
use crate::split::topology::attention_axis;

impl<B: Backend> Transformer<B> {
    /// Whether the passes of several ranks begin by that.
    pub fn tells_drafts(&self) -> bool {
        self.tells_drafts
    }

    /// From now on they do, or don't: all ranks say the same. What was recorded is void.
    pub fn tell_drafts(&mut self, backend: &B, tells: bool) {
        self.tells_drafts = tells && self.chooses && self.shard.topology.attention.size > 1;
        self.passes = self.fresh_passes(backend);
    }

    /// Gives every rank of the DP rank the drafts of the batch that is staged, of so many
    /// tokens.
    pub(super) fn exchange_drafts(
        &mut self,
        backend: &mut B,
        tokens: usize,
    ) -> Result<(), BackendError> {
        match backend.drafter() {
            Some(device) if self.tells_drafts => {
                device.tell(attention_axis(self.context.axis), &mut self.inputs, tokens)
            }
            _ => Ok(()),
        }
    }

    /// What that is in a pass of the size `key`.
    pub(super) fn drafted_words(&self, key: PassKey) -> Option<Exchanged> {
        let words = self.limits.inputs().drafted_words(key.tokens);
        let told = Exchanged::tell(attention_axis(self.context.axis), words);
        told.filter(|_| self.tells_drafts)
    }
}

//! Drafts that the device of a DP rank's lead sends to the devices of its other ranks as a
//! pass begins. No host comes between.

use lockstep_backend::{Backend, BackendError, CollectiveCall, PassKey};

use super::super::Transformer;
use crate::split::topology::attention_axis;

impl<B: Backend> Transformer<B> {
    /// Returns true if passes begin with the exchange of drafts.
    pub fn tells_drafts(&self) -> bool {
        self.tells_drafts
    }

    /// Turns the exchange of drafts on or off, equally on all ranks. It stays off unless the
    /// device chooses tokens and the DP rank has several ranks. Recorded passes become void.
    pub fn tell_drafts(&mut self, backend: &B, tells: bool) {
        self.tells_drafts = tells && self.chooses && self.shard.topology.attention.size > 1;
        self.passes = self.fresh_passes(backend);
    }

    /// Gives every rank of the DP rank the drafts of the staged batch, which has `tokens`
    /// tokens.
    pub(in crate::runner::transformer) fn exchange_drafts(
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

    /// Returns the exchange of drafts in a pass of the size `key`.
    pub(in crate::runner::transformer) fn drafted_words(
        &self,
        key: PassKey,
    ) -> Option<CollectiveCall> {
        let words = self.limits.inputs().drafted_words(key.tokens);
        let told = CollectiveCall::tell(attention_axis(self.context.axis), words);
        told.filter(|_| self.tells_drafts)
    }
}

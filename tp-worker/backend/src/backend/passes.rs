//! Passes of a batch.

use crate::{BackendError, Batch, DeviceDrafter, DeviceSampler, Memory, PassKey, PassRecords};

/// A pass over a staged batch, which a device may record and repeat, and its end: logits for the
/// host, or tokens that the device chooses.
pub trait Passes: Memory {
    /// Recorded passes of one model, owned by the model: see [`Self::pass`]. Fresh ones hold
    /// nothing and take no memory.
    type Passes: PassRecords;
    /// Brings a batch to where its pass reads it, in place of the last one: one copy, no wait.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    ///
    /// # Panics
    /// Panics where [`InputLimits::expect`] does, for the limits of `inputs`.
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Self::Inputs) -> Result<(), BackendError>;
    /// Returns the smallest recorded pass with room for a batch of at most `most` from each of
    /// `dp_ranks` DP ranks, all logits wanted. `None` if no pass has room, or if padding would
    /// change bits. Example: of passes of 8 and 16 tokens, 11 tokens run in the pass of 16.
    fn holding(&self, most: PassKey, dp_ranks: usize, inputs: &Self::Inputs) -> Option<PassKey> {
        let _ = (most, dp_ranks, inputs);
        None
    }
    /// Returns the size of the recorded pass for the staged batch, of size `key`, which wants
    /// all logits; `key` if none fits. Rows after the batch's rows then hold anything.
    fn pad(&mut self, key: PassKey, _: &mut Self::Inputs) -> PassKey {
        key
    }
    /// Returns all recorded sizes, the largest first. A pass over an empty batch records.
    fn repeated(&self, _: &Self::Inputs) -> Vec<PassKey> {
        Vec::new()
    }
    /// Runs `work`, a pass of the size `key` over the staged batch. The device may record the
    /// operations of `work` in `passes`, and repeat them without calling `work`. So:
    /// * `work` asks for the same operations on the same tensors, matrices and caches whenever
    ///   `key` is the same, and leaves the rest to [`Self::Inputs`].
    /// * `work` changes nothing on the host that later code relies on, no row count or place.
    /// * All passes of one `passes` come from one `work`. Another `work` has fresh ones.
    ///
    /// # Errors
    /// The errors of `work`, which leave all that the pass wrote unspecified;
    /// [`BackendError::Unplanned`].
    fn pass(
        &mut self,
        _: &mut Self::Passes,
        _: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        work(self)
    }
    /// Makes all recorded passes void, because memory that they name was replaced.
    fn forget_passes(&mut self) {}
    /// Returns true if nothing in `passes` is void.
    fn keeps(&self, _: &Self::Passes) -> bool {
        true
    }
    /// Returns the operations that choose tokens, if the device has them and whole logits.
    fn sampler(
        &mut self,
    ) -> Option<&mut dyn DeviceSampler<Self::Tensor, Self::Inputs, Self::KvCache>> {
        None
    }
    /// Returns the operations that draft chains, if the device drafts.
    fn drafter(
        &mut self,
    ) -> Option<&mut dyn DeviceDrafter<Self::Tensor, Self::Inputs, Self::Vector>> {
        None
    }
    /// Ends a pass that brings nothing to the host: waits for data of peers that is under way.
    fn arrive(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

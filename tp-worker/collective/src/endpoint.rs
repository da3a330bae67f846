//! What a transport provides, and all operations in terms of it.

use std::ops::Range;

use crate::attachment::Attachment;
use crate::{CollectiveError, Operation};

/// One rank's end of a transport between the ranks of one group.
///
/// Operations consist of transfers. In each, every rank fills its outgoing
/// buffer, all ranks transfer, and then read each other's buffers.
///
/// Public for [`crate::SharedMemory`] and [`crate::Tcp`] only: the module is not.
pub trait Endpoint: Send + Sized {
    /// This rank in the group.
    fn rank(&self) -> usize;

    /// Ranks of the group.
    fn size(&self) -> usize;

    /// The number of `rank` in the first group, by which errors name it.
    fn name(&self, rank: usize) -> usize;

    /// Elements that a transfer can carry per rank.
    fn capacity(&self) -> usize;

    /// See [`crate::Collective::is_crowded`].
    fn is_crowded(&self) -> bool;

    /// This rank's buffer for the next transfer.
    fn outgoing(&mut self) -> &mut [f32];

    /// What `rank` sent in the transfer that ended last; for this rank itself,
    /// what it wrote to [`Self::outgoing`].
    fn incoming(&self, rank: usize) -> &[f32];

    /// What peer `rank` attached to the transfer that ended last.
    fn attachment(&self, rank: usize) -> Attachment;

    /// Transfers outgoing buffers under the name of `operation`, and
    /// `attachment` with them.
    ///
    /// `part(from, to)` says which elements of `from`'s buffer `to` will read;
    /// others need not be transported.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`] if a peer names another operation,
    /// [`CollectiveError::Attached`] if it attaches what doesn't agree, both
    /// after it was told; otherwise why a peer could not be waited for.
    fn transfer(
        &mut self,
        operation: Operation,
        attachment: &Attachment,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError>;

    /// This rank's end of the group of `ranks`, ascending, itself and others,
    /// which all call this with the same `id`, used for no other group.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] when another rank doesn't come;
    /// [`CollectiveError::System`].
    fn split(&self, ranks: &[usize], id: u64) -> Result<Self, CollectiveError>;
}

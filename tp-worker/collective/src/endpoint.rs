//! The functions of a transport. All operations are built on them.

use std::ops::Range;

use crate::attachment::Attachment;
use crate::{CollectiveError, Operation};

/// One rank's end of a transport between the ranks of one group.
///
/// Operations consist of transfers. In each transfer every rank fills its outgoing buffer, all
/// ranks transfer, and then read each other's buffers.
///
/// Public only for [`crate::SharedMemory`] and [`crate::Tcp`]: the module is private.
pub trait Endpoint: Send + Sized {
    /// Returns this rank's number in the group.
    fn rank(&self) -> usize;

    /// Returns the number of ranks of the group.
    fn size(&self) -> usize;

    /// Returns the number of `rank` in the first group, by which errors name the rank.
    fn name(&self, rank: usize) -> usize;

    /// Returns the number of elements that a transfer can carry per rank.
    fn capacity(&self) -> usize;

    /// Returns true if threads that wait should sleep: see [`crate::Collective::is_crowded`].
    fn is_crowded(&self) -> bool;

    /// Returns this rank's buffer for the next transfer.
    fn outgoing(&mut self) -> &mut [f32];

    /// Returns the elements that `rank` sent in the last transfer. For this rank, these are the
    /// elements that it wrote to [`Self::outgoing`].
    fn incoming(&self, rank: usize) -> &[f32];

    /// Returns the words that peer `rank` attached to the last transfer.
    fn attachment(&self, rank: usize) -> Attachment;

    /// Transfers outgoing buffers under the name of `operation`, with `attachment`.
    ///
    /// `part(from, to)` returns the elements of `from`'s buffer that `to` will read. Other
    /// elements need not be transported.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`] if a peer names another operation;
    /// [`CollectiveError::Attached`] if its attachment doesn't agree. In both cases the peer is
    /// told first. Otherwise the reason why a peer could not be waited for.
    fn transfer(
        &mut self,
        operation: Operation,
        attachment: &Attachment,
        part: &dyn Fn(usize, usize) -> Range<usize>,
    ) -> Result<(), CollectiveError>;

    /// Returns this rank's end of the group of `ranks`, ascending, with itself among them. All
    /// of them call this with the same `id`, which no other group uses.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if another rank doesn't come; [`CollectiveError::System`].
    fn split(&self, ranks: &[usize], id: u64) -> Result<Self, CollectiveError>;
}

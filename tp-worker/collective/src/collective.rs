//! What a rank can do together with its peers.

use crate::{AbortHandle, CollectiveError, Parts};

/// Operations that all ranks of a group run together, in the same order.
///
/// A call returns when this rank may reuse its buffers. After an error the
/// group is broken: every later call of this rank returns the same error, and
/// its peers fail too instead of waiting for it. All ranks then have to build
/// a new group.
pub trait Collective: Send {
    /// This rank, `0..size()`.
    fn rank(&self) -> usize;

    /// The number of ranks in the group, at least 1.
    fn size(&self) -> usize;

    /// Whether the group's ranks on this machine have more compute threads
    /// than it has cores: threads that wait should sleep, not spin.
    fn is_crowded(&self) -> bool;

    /// Replaces `data` by its element-wise sum over ranks, added in rank order:
    /// the same bits on every rank and in every run. All ranks pass the same
    /// length.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `data` is unspecified then.
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError>;

    /// Elements up to which a sum is cheapest when every rank reads all parts
    /// where they lie, by [`Self::sum_buffer`] and [`Self::sum_parts`]; 0 when
    /// there are no parts to read. Equal on all ranks, and fixed.
    fn sum_capacity(&self) -> usize;

    /// `length` elements for this rank's part of the next sum, to be written
    /// before [`Self::sum_parts`] is called. Their content is unspecified.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::sum_capacity`]; the error
    /// that broke the group.
    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError>;

    /// [`Self::all_reduce_sum`] of what the ranks wrote to their
    /// [`Self::sum_buffer`], which leaves adding to the caller: it sees every
    /// rank's part. Added element-wise in rank order they are the same sum.
    ///
    /// # Errors
    /// As [`Self::sum_buffer`]; see [`CollectiveError`].
    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError>;

    /// Gives rank 0 every rank's `send`, concatenated by rank, in `recv`.
    ///
    /// `counts` holds the length of every rank's `send` and is the same on all
    /// ranks; `recv` is `Some` of `counts.sum()` elements on rank 0 and `None`
    /// on the others.
    ///
    /// # Errors
    /// See [`CollectiveError`]; [`CollectiveError::Argument`] when lengths
    /// don't fit `counts`.
    fn gather(
        &mut self,
        send: &[f32],
        counts: &[usize],
        recv: Option<&mut [f32]>,
    ) -> Result<(), CollectiveError>;

    /// [`Self::gather`] that lends rank 0 the parts instead of copying them;
    /// `None` on the other ranks. No count may exceed
    /// [`Self::gather_capacity`].
    ///
    /// # Errors
    /// As [`Self::gather`].
    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        counts: &[usize],
    ) -> Result<Option<Parts<'a>>, CollectiveError>;

    /// The longest part that [`Self::gather_parts`] takes. Equal on all ranks,
    /// and fixed.
    fn gather_capacity(&self) -> usize;

    /// Gives every rank the `data` of rank `root`. All ranks pass the same
    /// length and root.
    ///
    /// # Errors
    /// See [`CollectiveError`]; [`CollectiveError::Argument`] when there is no
    /// rank `root`.
    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// A handle that makes all present and future calls of this rank fail,
    /// usable from any thread.
    fn abort_handle(&self) -> AbortHandle;
}

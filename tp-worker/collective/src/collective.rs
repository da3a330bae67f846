//! What a rank can do together with its peers.

use crate::{AbortHandle, CollectiveError};

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

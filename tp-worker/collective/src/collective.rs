//! The operations that a rank runs together with its peers.

use std::ops::Range;

use crate::{AbortHandle, CollectiveError, Owners, Parts};

/// Operations that all ranks of a group run together, in the same order.
///
/// A call returns once this rank may reuse its buffers. After an error the group is broken:
/// every later call of this rank returns the same error, and its peers fail too instead of
/// waiting for it. All ranks then have to build a new group.
///
/// [`Self::split`] forms groups of some of the ranks. The groups of a rank fail together: an
/// error in one breaks all, and an abort ends the waits in all. A rank leaves when the last of
/// its groups is dropped. Errors name ranks by their numbers in the first group.
pub trait Collective: Send {
    /// Returns this rank's number, `0..size()`.
    fn rank(&self) -> usize;

    /// Returns the number of ranks in the group, at least 1.
    fn size(&self) -> usize;

    /// Returns true if the group's ranks on this machine have more compute threads than there
    /// are cores. Threads that wait should then sleep, not spin.
    fn is_crowded(&self) -> bool;

    /// Replaces `data` by its element-wise sum over ranks, added in rank order. The bits are
    /// equal on every rank and in every run. All ranks pass the same length.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `data` is then unspecified.
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError>;

    /// Returns the most elements for which a sum is cheapest if every rank reads all parts in
    /// place, by [`Self::sum_buffer`] and [`Self::sum_parts`]. It is 0 if there are no parts to
    /// read, equal on all ranks, and fixed.
    fn sum_capacity(&self) -> usize;

    /// Returns a buffer of `length` elements for this rank's part of the next sum. It has to be
    /// written before [`Self::sum_parts`] or [`Self::reduce_scatter_parts`] is called. Its
    /// content is unspecified.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::parts_capacity`]; the error
    /// that broke the group.
    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError>;

    /// Does [`Self::all_reduce_sum`] on the parts in the ranks' [`Self::sum_buffer`]s, but
    /// leaves adding to the caller, who gets every rank's part. Added element-wise in rank
    /// order the parts give the same sum.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::sum_capacity`]; otherwise
    /// see [`CollectiveError`].
    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError>;

    /// Sets `own` to elements `ranges[rank]` of the element-wise sum of `data` over ranks. All
    /// ranks pass the same length of `data` and the same `ranges`, by rank, which may overlap.
    /// The bits are those of [`Self::all_reduce_sum`].
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if the lengths don't fit each other; otherwise see
    /// [`CollectiveError`].
    fn reduce_scatter_sum(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// Does [`Self::reduce_scatter_sum`] on the parts in the ranks' [`Self::sum_buffer`]s of
    /// `length` elements, but leaves adding to the caller, who gets elements `ranges[rank]` of
    /// every rank's part.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::parts_capacity`], or if the ranges don't
    /// fit `length`; otherwise see [`CollectiveError`].
    fn reduce_scatter_parts(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Parts<'_>, CollectiveError>;

    /// Gives every rank all ranks' `own`, in rank order, in `all`. `counts` holds the length of
    /// every rank's `own` and is equal on all ranks. `all` has `counts.sum()` elements.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if the lengths don't fit each other; otherwise see
    /// [`CollectiveError`].
    fn all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// Does [`Self::all_gather`] with as many words from each rank. Ranks vote so, compare what
    /// they have prepared, and learn each other's decisions.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if the lengths don't fit each other; otherwise see
    /// [`CollectiveError`].
    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError>;

    /// Checks that all ranks bring the same `words`. Ranks call it before work that nothing
    /// compares. Attached words travel with it.
    ///
    /// # Errors
    /// [`CollectiveError::Disagree`] on every rank if one differs; otherwise see
    /// [`CollectiveError`].
    fn agree(&mut self, words: &[u32]) -> Result<(), CollectiveError>;

    /// Gives every rank its rows by `owners`, of every rank's columns. `recv` gets rank 0's
    /// part `[rows, width]`, then rank 1's, and so on. `send` are this rank's columns of all
    /// rows.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if lengths don't fit `owners`; otherwise see
    /// [`CollectiveError`].
    fn gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// Does [`Self::gather`], but lends the parts instead of copying them.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if `send` doesn't fit `owners`, or if a rank's columns of
    /// all rows exceed [`Self::parts_capacity`]; otherwise see [`CollectiveError`].
    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        owners: Owners<'_>,
    ) -> Result<Parts<'a>, CollectiveError>;

    /// Returns the length of the longest part that [`Self::gather_parts`] and
    /// [`Self::reduce_scatter_parts`] take. Equal on all ranks, and fixed.
    fn parts_capacity(&self) -> usize;

    /// Gives every rank the `data` of rank `root`. All ranks pass the same
    /// length and root.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] if there is no rank `root`; otherwise see
    /// [`CollectiveError`].
    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Attaches `words` to this rank's next operation in this group, of any kind: the words
    /// travel with it. The first `shared` words must be equal on all ranks, and so must the
    /// numbers of all and of shared words. Attaching again before the operation replaces the
    /// words.
    ///
    /// In a group of one rank the words arrive at once.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] unless there are 1 to
    /// [`ATTACHED_WORDS`](crate::ATTACHED_WORDS) words, and at least `shared`; the error that
    /// broke the group. If ranks differ, the operation ends with [`CollectiveError::Attached`],
    /// before any rank reads its data.
    fn attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError>;

    /// Copies the words that all ranks attached to the last operation with words to `all`, in
    /// rank order. Returns false, and leaves `all` as it was, if there was no such operation,
    /// or if this rank's [`Self::attach`] still waits for one.
    ///
    /// # Panics
    /// Panics if `all` does not have the length of these words together.
    fn attached(&self, all: &mut [u32]) -> bool;

    /// Splits the group into groups of equal `color`, and returns this rank's new group. Ranks
    /// keep their order. This group goes on beside the new ones.
    ///
    /// All ranks of this group call it together. Operations of a new group are ordered with
    /// this group's operations as if both were one group: two ranks that share both must run
    /// them in the same order, and get [`CollectiveError::Mismatch`] if they don't.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] if a rank doesn't come; otherwise see [`CollectiveError`].
    fn split(&mut self, color: u32) -> Result<Box<dyn Collective>, CollectiveError>;

    /// Returns a handle, usable from any thread, that makes all present and future calls of
    /// this rank fail, in all its groups.
    fn abort_handle(&self) -> AbortHandle;
}

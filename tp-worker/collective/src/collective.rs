//! What a rank can do together with its peers.

use std::ops::Range;

use crate::{AbortHandle, CollectiveError, Owners, Parts};

/// Operations that all ranks of a group run together, in the same order.
///
/// A call returns when this rank may reuse its buffers. After an error the
/// group is broken: every later call of this rank returns the same error, and
/// its peers fail too instead of waiting for it. All ranks then have to build
/// a new group.
///
/// [`Self::split`] forms groups of some of the ranks. A rank's groups share
/// its fate: an error in one of them breaks all, an abort ends the waits in
/// all, and a rank leaves when the last of them is dropped. Errors name ranks
/// by their numbers in the first group.
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
    /// before [`Self::sum_parts`] or [`Self::reduce_scatter_parts`] is called.
    /// Their content is unspecified.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::parts_capacity`]; the error
    /// that broke the group.
    fn sum_buffer(&mut self, length: usize) -> Result<&mut [f32], CollectiveError>;

    /// [`Self::all_reduce_sum`] of what the ranks wrote to their
    /// [`Self::sum_buffer`], which leaves adding to the caller: it sees every
    /// rank's part. Added element-wise in rank order they are the same sum.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::sum_capacity`]; otherwise
    /// see [`CollectiveError`].
    fn sum_parts(&mut self, length: usize) -> Result<Parts<'_>, CollectiveError>;

    /// Sets `own` to elements `ranges[rank]` of the element-wise sum of `data`
    /// over ranks. All ranks pass the same length of `data`, and the same
    /// `ranges`, by rank, which may overlap. The bits are those of
    /// [`Self::all_reduce_sum`].
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when the lengths don't fit each other;
    /// otherwise see [`CollectiveError`].
    fn reduce_scatter_sum(
        &mut self,
        data: &[f32],
        ranges: &[Range<usize>],
        own: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// [`Self::reduce_scatter_sum`] of what the ranks wrote to their
    /// [`Self::sum_buffer`] of `length` elements, which leaves adding to the
    /// caller: it sees elements `ranges[rank]` of every rank's part.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] beyond [`Self::parts_capacity`], or when
    /// the ranges don't fit `length`; otherwise see [`CollectiveError`].
    fn reduce_scatter_parts(
        &mut self,
        length: usize,
        ranges: &[Range<usize>],
    ) -> Result<Parts<'_>, CollectiveError>;

    /// Gives every rank all ranks' `own`, in rank order, in `all`. `counts` holds
    /// the length of every rank's `own` and is the same on all ranks; `all` has
    /// `counts.sum()` elements.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when the lengths don't fit each other;
    /// otherwise see [`CollectiveError`].
    fn all_gather(
        &mut self,
        own: &[f32],
        counts: &[usize],
        all: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// [`Self::all_gather`] of as many words from each rank: how ranks vote,
    /// compare what they have prepared, and learn what others decided.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when the lengths don't fit each other;
    /// otherwise see [`CollectiveError`].
    fn exchange(&mut self, words: &[u32], all: &mut [u32]) -> Result<(), CollectiveError>;

    /// Checks that all ranks bring the same `words`: what they have to agree on before
    /// something that nothing compares. What is attached travels with it.
    ///
    /// # Errors
    /// [`CollectiveError::Disagree`] on every rank where one differs; otherwise see
    /// [`CollectiveError`].
    fn agree(&mut self, words: &[u32]) -> Result<(), CollectiveError>;

    /// Gives every rank the rows that `owners` say are its, of every rank's
    /// columns: `recv` gets rank 0's part `[rows, width]`, then rank 1's, and so
    /// on. `send` are this rank's columns of all rows.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when lengths don't fit `owners`; otherwise
    /// see [`CollectiveError`].
    fn gather(
        &mut self,
        send: &[f32],
        owners: Owners<'_>,
        recv: &mut [f32],
    ) -> Result<(), CollectiveError>;

    /// [`Self::gather`] that lends the parts instead of copying them.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when `send` doesn't fit `owners`, or a
    /// rank's columns of all rows exceed [`Self::parts_capacity`]; otherwise see
    /// [`CollectiveError`].
    fn gather_parts<'a>(
        &'a mut self,
        send: &'a [f32],
        owners: Owners<'_>,
    ) -> Result<Parts<'a>, CollectiveError>;

    /// The longest part that [`Self::gather_parts`] and
    /// [`Self::reduce_scatter_parts`] take. Equal on all ranks, and fixed.
    fn parts_capacity(&self) -> usize;

    /// Gives every rank the `data` of rank `root`. All ranks pass the same
    /// length and root.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] when there is no rank `root`; otherwise
    /// see [`CollectiveError`].
    fn broadcast(&mut self, root: usize, data: &mut [u32]) -> Result<(), CollectiveError>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Attaches `words` to this rank's next operation in this group, whichever
    /// it is: they travel with it. The first `shared` of them must be equal on
    /// all ranks, and the numbers of words, all and shared. Attaching again
    /// before that replaces them.
    ///
    /// In a group of one rank they arrive at once.
    ///
    /// # Errors
    /// [`CollectiveError::Argument`] unless there are 1 to
    /// [`ATTACHED_WORDS`](crate::ATTACHED_WORDS) words, at least `shared`; the
    /// error that broke the group. Ranks that differ have the operation end
    /// with [`CollectiveError::Attached`], before any of them reads its data.
    fn attach(&mut self, shared: usize, words: &[u32]) -> Result<(), CollectiveError>;

    /// Copies to `all` what all ranks attached to the last operation that
    /// took words along, in rank order. False, and `all` as it was, if there
    /// was none yet or if this rank's [`Self::attach`] still waits for one.
    ///
    /// # Panics
    /// If `all` has another length than those words together.
    fn attached(&self, all: &mut [u32]) -> bool;

    /// Splits the group into groups of equal `color`, and returns this rank's;
    /// ranks keep their order. This group goes on beside them.
    ///
    /// All ranks of this group call it together. What a new group runs is
    /// ordered with this group's operations like operations of one group: two
    /// ranks that share both must run them in the same order, and are told by
    /// [`CollectiveError::Mismatch`] if they don't.
    ///
    /// # Errors
    /// [`CollectiveError::Join`] when a rank doesn't come; otherwise see
    /// [`CollectiveError`].
    fn split(&mut self, color: u32) -> Result<Box<dyn Collective>, CollectiveError>;

    /// A handle that makes all present and future calls of this rank fail, in
    /// all its groups, usable from any thread.
    fn abort_handle(&self) -> AbortHandle;
}

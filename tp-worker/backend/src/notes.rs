//! Notes of ranks, which travel with the data of a pass.

use crate::BackendError;

/// A device where notes of ranks travel with a pass, as its first operation. That operation is
/// the same in every pass, so it ends even if the ranks' passes differ and the later operations
/// would wait for ever.
pub trait ExchangeNotes {
    /// Allocates room for notes of `shape`, in place of the previous room.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn prepare(&mut self, shape: NoteShape) -> Result<(), BackendError>;
    /// Makes the next pass carry `words`. A pass without a call carries the last words.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn bring(&mut self, words: &[u32]) -> Result<(), BackendError>;
    /// Brings every rank's note to all ranks, and compares the notes on the device. It may be
    /// part of a recorded pass.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn exchange(&mut self) -> Result<(), BackendError>;
    /// Returns the notes that have come, once the pass has been waited for.
    fn came(&mut self) -> Notes<'_>;
}

/// The layout of a note.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoteShape {
    /// Number of words.
    pub words: usize,
    /// Number of words at the start that are equal on all ranks, unless the ranks have
    /// diverged.
    pub shared: usize,
    /// Number of words after these that are equal on the ranks of a DP rank.
    pub of_dp_rank: usize,
}

/// The notes of all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notes<'a> {
    /// All notes, in rank order.
    pub words: &'a [u32],
    /// True if the device found a difference in words that must be equal.
    pub differ: bool,
}

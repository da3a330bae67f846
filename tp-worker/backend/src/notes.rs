//! Notes that ranks bring to a pass, and which travel where its data does.

use crate::BackendError;

/// A device where ranks' notes travel with a pass: as its first operation, which is the
/// same in every pass, so that it ends also where what follows would not.
pub trait ExchangeNotes {
    /// Takes room for notes of `shape`, in place of what there was.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn prepare(&mut self, shape: NoteShape) -> Result<(), BackendError>;
    /// Has the next pass take `words` along; without, it takes the last ones.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn bring(&mut self, words: &[u32]) -> Result<(), BackendError>;
    /// Brings every rank's note to all, and compares them on the device. May be part of a
    /// pass that is recorded.
    ///
    /// # Errors
    /// [`BackendError`] of what has failed on the device.
    fn exchange(&mut self) -> Result<(), BackendError>;
    /// What has come, once the pass has been waited for.
    fn came(&mut self) -> Notes<'_>;
}

/// What a note is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoteShape {
    /// Words.
    pub words: usize,
    /// The first so many are the same on all ranks, or these have diverged.
    pub shared: usize,
    /// So many behind them are the same on the ranks of a DP rank.
    pub of_dp_rank: usize,
}

/// The notes of all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notes<'a> {
    /// One behind the other, in rank order.
    pub words: &'a [u32],
    /// The device found that they differ where they may not.
    pub differ: bool,
}

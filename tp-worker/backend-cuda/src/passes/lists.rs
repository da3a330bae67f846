//! Lists of the host, brought to the device for kernels.

use std::sync::Arc;

use crate::error::CudaError;
use crate::runtime::{Buffer, Context, Staged, Stream};

/// Number of lists that may be on their way at once, before the host waits for the first.
const STAGES: usize = 8;
/// Words that there is room for from the start.
const LEAST: usize = 1024;

/// Room for one list after another; each replaces the one before. The device's room is one,
/// since operations that read it run in turn.
pub(crate) struct Lists {
    device: Buffer<u32>,
    stages: Vec<Staged<u32>>,
    turn: usize,
}

impl Lists {
    /// Allocates room for small lists.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::of(context, LEAST)
    }

    fn of(context: &Arc<Context>, words: usize) -> Result<Self, CudaError> {
        let stage = |_| Staged::new(context, words, "lists");
        Ok(Self {
            device: Buffer::new(context, words, "lists")?,
            stages: (0..STAGES).map(stage).collect::<Result<_, _>>()?,
            turn: 0,
        })
    }

    /// Bytes on the device, if no list has more than `most` words.
    pub(crate) fn bytes(most: usize) -> u64 {
        4 * room(most) as u64
    }

    /// Makes room for lists of `words` words.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn reserve(
        &mut self,
        context: &Arc<Context>,
        words: usize,
    ) -> Result<(), CudaError> {
        if words > self.device.len() {
            // The old room is freed first, so that both never exist at once.
            *self = Self::of(context, LEAST)?;
            *self = Self::of(context, room(words))?;
        }
        Ok(())
    }

    /// Queues the copy of `words` words that `fill` writes. Allocates if this is the longest
    /// list so far.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Driver`].
    pub(crate) fn bring(
        &mut self,
        stream: &Stream,
        words: usize,
        fill: impl FnOnce(&mut [u32]),
    ) -> Result<&Buffer<u32>, CudaError> {
        self.reserve(stream.context(), words)?;
        self.turn = (self.turn + 1) % STAGES;
        let stage = &mut self.stages[self.turn];
        fill(&mut stage.elements()?[..words]);
        stage.send(stream, 0..words, &mut self.device, 0)?;
        Ok(&self.device)
    }
}

/// Words of the room for a list of `words`.
fn room(words: usize) -> usize {
    words
        .checked_next_power_of_two()
        .unwrap_or(usize::MAX)
        .max(LEAST)
}

//! One group of ranks in NCCL.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::library::{Code, Library, Raw, UNDER_WAY, UniqueId};
use super::shared_communicator::Known;
use super::shutdown::{End, Ending};
use crate::error::CudaError;
use crate::exchange::watch::Way;
use crate::runtime::Context;

/// A rank's end of a communicator. Graphs that recorded its operations hold it, so that they
/// are dropped first.
pub(crate) struct Communicator {
    known: Arc<Known>,
    ending: Arc<Ending>,
    tells: Sender<End>,
}

impl Communicator {
    /// Begins to join as rank `rank.0` of `rank.1`. [`Self::is_ready`] tells when the join is
    /// done.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Driver`].
    pub(super) fn begin(
        library: &Arc<Library>,
        context: &Arc<Context>,
        id: UniqueId,
        rank: (usize, usize),
    ) -> Result<Self, CudaError> {
        let (ending, tells) = Ending::prepare()?;
        Ok(Self {
            known: Arc::new(Known::begin(library, context, id, rank)?),
            ending,
            tells,
        })
    }

    /// Progress of the communicator's end.
    pub(crate) fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    /// Returns true if NCCL has taken the last operation. A communicator that ends has nothing
    /// left to take.
    ///
    /// # Errors
    /// [`CudaError::Nccl`]: the operation failed, perhaps some time after it was asked for.
    pub(super) fn is_ready(&self) -> Result<bool, CudaError> {
        self.known.is_ready()
    }

    /// Asks NCCL for `work`. Does nothing if the communicator ends; the wait for the stream
    /// returns the error then.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(super) fn ask(
        &self,
        call: &'static str,
        work: impl FnOnce(&Library, Raw) -> Code,
    ) -> Result<(), CudaError> {
        if self.known.call(call, work)? == Some(UNDER_WAY) {
            // The lock is free here, so that the communicator can be aborted meanwhile.
            while !self.is_ready()? {
                std::thread::yield_now();
            }
            // NCCL may still be about to launch the work, over memory that the caller frees.
            if self.known.ends() {
                self.ending.wait_for_end();
            }
        }
        Ok(())
    }

    /// Makes the communicator end; returns true if this call was the first.
    fn end(&self, how: impl FnOnce(Arc<Known>) -> End) -> bool {
        let first = self.known.end();
        if first {
            self.ending.begin();
            // The thread waits for nothing else.
            let _ = self.tells.send(how(self.known.clone()));
        }
        first
    }
}

impl Way for Communicator {
    fn failed(&self) -> Option<String> {
        self.known.failed().map(|error| error.to_string())
    }

    fn abort(&self) {
        self.end(End::Abort);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // An aborted communicator has no data left.
        if self.end(End::Leave) {
            self.ending.wait_for_data();
        }
    }
}

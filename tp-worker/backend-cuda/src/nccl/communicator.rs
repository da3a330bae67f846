//! One group of ranks, as NCCL knows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::library::{Code, Library, Raw, UNDER_WAY, UniqueId};
use crate::context::Context;
use crate::error::CudaError;
use crate::watched::Way;

/// How long a communicator that is given back may take to come to its end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Between two questions whether something has come to its end.
const PAUSE: Duration = Duration::from_millis(1);

/// A rank's end of a communicator. Graphs that were recorded with it hold it, so
/// that they go first.
pub(crate) struct Communicator {
    library: Arc<Library>,
    context: Arc<Context>,
    /// `None` once it was aborted: then it is gone.
    raw: Mutex<Option<Handle>>,
}

struct Handle(Raw);

// SAFETY: a communicator may be used by any thread, by one at a time, and aborted
// by another: the lock is held meanwhile.
unsafe impl Send for Handle {}

impl Communicator {
    /// Begins to join rank `rank` of `size`; [`Self::is_ready`] tells when it has.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Driver`].
    pub(super) fn begin(
        library: &Arc<Library>,
        context: &Arc<Context>,
        id: UniqueId,
        (rank, size): (usize, usize),
    ) -> Result<Self, CudaError> {
        context.bind()?;
        let raw = library.begin(id, rank, size)?;
        Ok(Self {
            library: library.clone(),
            context: context.clone(),
            raw: Mutex::new(Some(Handle(raw))),
        })
    }

    /// Whether what was asked for last has been taken; an aborted one has nothing
    /// left to take.
    ///
    /// # Errors
    /// [`CudaError::Nccl`]: it failed, also some time after it was asked for.
    pub(super) fn is_ready(&self) -> Result<bool, CudaError> {
        let raw = self.lock();
        let Some(Handle(raw)) = &*raw else {
            return Ok(true);
        };
        // SAFETY: it exists.
        let state = unsafe { self.library.state(*raw) };
        self.library.check("ncclCommGetAsyncError", state)?;
        Ok(state != UNDER_WAY)
    }

    /// Asks for `work`. Of one that was aborted nothing is asked: whoever waits for
    /// the stream is told.
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(super) fn ask(
        &self,
        call: &'static str,
        work: impl FnOnce(&Library, Raw) -> Code,
    ) -> Result<(), CudaError> {
        self.context.bind()?;
        let code = match &*self.lock() {
            Some(Handle(raw)) => work(&self.library, *raw),
            None => return Ok(()),
        };
        self.library.check(call, code)?;
        if code == UNDER_WAY {
            // Not with the lock: it can be aborted meanwhile.
            while !self.is_ready()? {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Way for Communicator {
    fn failed(&self) -> Option<String> {
        let state = self.is_ready();
        state.err().map(|error| error.to_string())
    }

    fn abort(&self) {
        let known = self.lock().take();
        if let Some(Handle(raw)) = known
            && self.context.bind().is_ok()
        {
            // SAFETY: it exists, and nobody has it any more.
            unsafe { self.library.abort(raw) }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        let begun = match &*self.lock() {
            None => return,
            Some(Handle(raw)) => {
                // SAFETY: it exists.
                let code = unsafe { self.library.finalize(*raw) };
                self.library.check("ncclCommFinalize", code)
            }
        };
        let end = Instant::now() + FAREWELL;
        let mut state = begun.and_then(|()| self.is_ready());
        while matches!(state, Ok(false)) && Instant::now() < end {
            std::thread::park_timeout(PAUSE);
            state = self.is_ready();
        }
        // Peers that are gone are not waited for.
        if !matches!(state, Ok(true)) {
            return self.abort();
        }
        if let Some(Handle(raw)) = self.lock().take() {
            // SAFETY: it exists, and nobody has it any more.
            unsafe { self.library.destroy(raw) }
        }
    }
}

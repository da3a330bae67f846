//! A communicator shared by all threads that call NCCL with it, with the locks that keep the
//! threads apart.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::library::{Code, Library, Raw, UNDER_WAY, UniqueId};
use crate::error::CudaError;
use crate::runtime::Context;

/// Time for which an abort waits for a call that is under way.
const CALL: Duration = Duration::from_millis(100);
/// Pause between two checks for an end.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// A communicator, and the lock of its callers.
pub(super) struct Known {
    library: Arc<Library>,
    context: Arc<Context>,
    raw: Raw,
    /// Held during each call of NCCL with the communicator.
    calls: Mutex<()>,
    /// True once the communicator belongs to the thread that ends it.
    ends: AtomicBool,
}

// SAFETY: a communicator may be used by any thread, by one at a time, and aborted by another:
// the lock is held meanwhile, and nobody uses one that ends.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

impl Known {
    /// Begins to join as rank `rank` of `size`.
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
        Ok(Self {
            raw: library.begin(id, rank, size)?,
            library: library.clone(),
            context: context.clone(),
            calls: Mutex::new(()),
            ends: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the communicator for the thread that ends it; returns true at the first call.
    pub(super) fn end(&self) -> bool {
        !self.ends.swap(true, Ordering::SeqCst)
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::SeqCst)
    }

    /// Calls `work` and returns its code; `None` if the communicator ends. A failure because
    /// the communicator has ended since is `None`, too.
    ///
    /// # Errors
    /// [`CudaError::Nccl`], [`CudaError::Driver`].
    pub(super) fn call(
        &self,
        call: &'static str,
        work: impl FnOnce(&Library, Raw) -> Code,
    ) -> Result<Option<Code>, CudaError> {
        self.context.bind()?;
        let code = {
            let _calls = self.lock();
            if self.ends() {
                return Ok(None);
            }
            work(&self.library, self.raw)
        };
        match self.library.check(call, code) {
            Err(_) if self.ends() => Ok(None),
            checked => checked.map(|()| Some(code)),
        }
    }

    /// Returns true if NCCL has taken the last operation. A communicator that ends has nothing
    /// left to take.
    ///
    /// # Errors
    /// [`CudaError::Nccl`]: the operation failed, perhaps some time after it was asked for.
    pub(super) fn is_ready(&self) -> Result<bool, CudaError> {
        self.progress(&self.lock())
    }

    /// The error of the last operation, if it failed. `None` while a call is under way, which
    /// may take long.
    pub(super) fn failed(&self) -> Option<CudaError> {
        let calls = match self.calls.try_lock() {
            Ok(calls) => calls,
            Err(TryLockError::Poisoned(calls)) => calls.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.progress(&calls).err()
    }

    fn progress(&self, _calls: &MutexGuard<'_, ()>) -> Result<bool, CudaError> {
        if self.ends() {
            return Ok(true);
        }
        let state = self.state();
        self.library.check("ncclCommGetAsyncError", state)?;
        Ok(state != UNDER_WAY)
    }

    pub(super) fn state(&self) -> Code {
        // SAFETY: it exists.
        unsafe { self.library.state(self.raw) }
    }

    pub(super) fn finalize(&self) -> Code {
        match self.context.bind() {
            // SAFETY: it exists.
            Ok(()) => unsafe { self.library.finalize(self.raw) },
            Err(_) => UNDER_WAY,
        }
    }

    /// Frees the communicator. Either this or [`Self::abort`] is the last call with it.
    pub(super) fn destroy(&self) {
        // SAFETY: it exists, and nobody has it any more.
        unsafe { self.library.destroy(self.raw) }
    }

    /// See [`Self::destroy`]. A call that does not return holds the lock, and the abort ends
    /// it: abort is the one call that NCCL allows beside others.
    pub(super) fn abort(&self) {
        let end = Instant::now() + CALL;
        let calls = loop {
            match self.calls.try_lock() {
                Ok(calls) => break Some(calls),
                Err(TryLockError::Poisoned(calls)) => break Some(calls.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => break None,
                Err(TryLockError::WouldBlock) => std::thread::park_timeout(PAUSE),
            }
        };
        // The next holder of the lock sees that the communicator ends.
        drop(calls);
        if self.context.bind().is_ok() {
            // SAFETY: it exists, and nobody calls NCCL with it from now on.
            unsafe { self.library.abort(self.raw) }
        }
    }
}

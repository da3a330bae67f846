//! Cancelling what another thread compiles.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use llguidance::CancellationHandle;

/// A request, by another thread, to stop compiling.
#[derive(Debug, Default)]
pub struct Cancel {
    cancelled: AtomicBool,
    handle: Mutex<Option<CancellationHandle>>,
}

impl Cancel {
    /// Ends the compiling, with [`ConstraintError::Slow`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &*handle {
            handle.cancel();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Takes the handle of what is done next. Returns false if it is cancelled already.
    pub(crate) fn arm(&self, handle: Option<CancellationHandle>) -> bool {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = handle;
        !self.is_cancelled()
    }
}

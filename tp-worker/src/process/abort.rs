//! Ending the computing thread's waits when the scheduler is gone.

use std::sync::{Arc, Mutex, PoisonError};

use lockstep_collective::AbortHandle;

/// Abort handle that both threads of the process share.
#[derive(Clone, Default)]
pub struct SharedAbort(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    handle: Option<AbortHandle>,
    fired: bool,
}

impl SharedAbort {
    /// Takes the handle of the collectives once they are connected. From then on [`Self::fire`]
    /// ends their waits.
    pub fn arm(&self, handle: AbortHandle) {
        let mut state = self.lock();
        if state.fired {
            handle.abort();
        }
        state.handle = Some(handle);
    }
    /// Ends all waits, now and later. Returns true if the collectives are connected. A wait for
    /// peers to join cannot be ended.
    pub fn fire(&self) -> bool {
        let mut state = self.lock();
        state.fired = true;
        if let Some(handle) = &state.handle {
            handle.abort();
        }
        state.handle.is_some()
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Ending a rank's waits from outside.

use std::fmt;
use std::sync::Arc;

/// Makes all present and future calls of one rank fail, from any thread.
///
/// Peers that wait for the rank then fail with
/// [`crate::CollectiveError::PeerLeft`].
#[derive(Clone)]
pub struct AbortHandle {
    target: Arc<dyn Abort>,
}

/// What an [`AbortHandle`] acts on.
pub(crate) trait Abort: Send + Sync {
    /// Fails the rank's waits, now and later. May be called more than once.
    fn abort(&self);
}

impl AbortHandle {
    pub(crate) fn new(target: Arc<dyn Abort>) -> Self {
        Self { target }
    }

    /// Fails the rank's calls, present and future.
    pub fn abort(&self) {
        self.target.abort();
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}

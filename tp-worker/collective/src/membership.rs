//! A rank's part in its groups, which begins and ends in all of them at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::CollectiveError;

/// How the peers see that a rank takes part, in whichever of its groups.
pub(crate) trait Presence: Send + Sync {
    /// The rank fails its own waits, now and later, and those of its peers.
    /// May be called more than once.
    fn abort(&self);
    /// The rank takes part no more: peers that wait for it fail.
    fn leave(&self);
    /// Whether [`Self::abort`] was called.
    fn is_aborted(&self) -> bool;
    /// A peer that is seen to take part no more, by its number in the first group.
    fn departed(&self) -> Option<usize> {
        None
    }
    /// Shows the peers words of this rank's, in place of the last.
    fn show(&self, _words: &Shown) {}
    /// What the peer with that number in the first group shows; `None` where that
    /// can't be seen.
    fn shown(&self, _peer: usize) -> Option<Shown> {
        None
    }
}

/// Words that a rank shows its peers at any time, without an operation: zeros at first.
pub type Shown = [u64; 10];

/// Shared by the first group of a rank and all that were split off from it.
/// The rank leaves them when an operation fails, or with the last of them.
pub(crate) struct Membership {
    /// The rank's number in the first group, by which errors name it.
    pub name: usize,
    presence: Arc<dyn Presence>,
    broken: OnceLock<CollectiveError>,
}

impl Membership {
    pub fn new(name: usize, presence: Arc<dyn Presence>) -> Arc<Self> {
        Arc::new(Self {
            name,
            presence,
            broken: OnceLock::new(),
        })
    }

    /// The error that ended the rank's part, if one did.
    pub fn check(&self) -> Result<(), CollectiveError> {
        match self.broken.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// [`Self::check`] for a group that has no waits to notice an abort in.
    pub fn check_aborted(&self) -> Result<(), CollectiveError> {
        self.check()?;
        match self.presence.is_aborted() {
            true => Err(CollectiveError::Aborted {
                rank: self.name,
                missing: None,
            }),
            false => Ok(()),
        }
    }

    /// Ends the rank's part if `result` is an error.
    pub fn settle<T>(&self, result: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        result.inspect_err(|error| {
            if self.broken.set(error.clone()).is_ok() {
                self.presence.leave();
            }
        })
    }

    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle {
            presence: self.presence.clone(),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.presence.leave();
    }
}

/// Makes all present and future calls of one rank fail, in all its groups and
/// from any thread.
///
/// Peers that wait for the rank then fail with
/// [`crate::CollectiveError::PeerLeft`].
#[derive(Clone)]
pub struct AbortHandle {
    presence: Arc<dyn Presence>,
}

impl AbortHandle {
    /// Fails the rank's calls, present and future.
    pub fn abort(&self) {
        self.presence.abort();
    }

    /// Whether the rank was aborted: what else it waits for has to end then.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.presence.is_aborted()
    }

    /// A peer that has left the group, as far as that shows without an operation.
    #[must_use]
    pub fn departed(&self) -> Option<usize> {
        self.presence.departed()
    }

    /// Shows the peers words of this rank's, in place of the last, which they can see
    /// where ranks share memory.
    pub fn show(&self, words: &Shown) {
        self.presence.show(words);
    }

    /// What peer `rank` shows, of which some words may be older than others while it
    /// shows more; `None` where that can't be seen.
    #[must_use]
    pub fn shown(&self, rank: usize) -> Option<Shown> {
        self.presence.shown(rank)
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}

/// Of a rank without peers.
#[derive(Debug, Default)]
pub(crate) struct Alone(AtomicBool);

impl Presence for Alone {
    fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn leave(&self) {}

    fn is_aborted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

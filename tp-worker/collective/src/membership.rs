//! A rank's membership in its groups, which begins and ends in all of them at once.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::CollectiveError;

/// A rank's presence in all its groups, as peers see it.
pub(crate) trait Presence: Send + Sync {
    /// Makes the rank's own waits fail, now and later, and those of its peers. May be called
    /// more than once.
    fn abort(&self);
    /// Ends the rank's part. Peers that wait for the rank fail.
    fn leave(&self);
    /// Returns true if [`Self::abort`] was called.
    fn is_aborted(&self) -> bool;
    /// Returns a peer that visibly takes part no more, by its number in the first group.
    fn departed(&self) -> Option<usize> {
        None
    }
    /// Shows words of this rank to the peers, in place of the last words.
    fn show(&self, _words: &Shown) {}
    /// Returns the words that a peer shows; `None` if they can't be seen. `peer` is its number
    /// in the first group.
    fn shown(&self, _peer: usize) -> Option<Shown> {
        None
    }
}

/// Words that a rank shows its peers at any time, without an operation. Zeros at first.
pub type Shown = [u64; 10];

/// Shared by a rank's first group and all groups split off from it. The rank leaves them when
/// an operation fails, or when the last of them is dropped.
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

    /// Returns the error that ended the rank's part, if there is one.
    pub fn check(&self) -> Result<(), CollectiveError> {
        match self.broken.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Does [`Self::check`], and also fails after an abort. For a group without waits, which
    /// can't notice an abort otherwise.
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

/// Makes all present and future calls of one rank fail, in all its groups, from any thread.
///
/// Peers that wait for the rank then fail with
/// [`crate::CollectiveError::PeerLeft`].
#[derive(Clone)]
pub struct AbortHandle {
    presence: Arc<dyn Presence>,
}

impl AbortHandle {
    /// Makes the rank's calls fail, present and future.
    pub fn abort(&self) {
        self.presence.abort();
    }

    /// Returns true if the rank was aborted. Its other waits then have to end too.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.presence.is_aborted()
    }

    /// Returns a peer that has left the group, as far as that shows without an operation.
    #[must_use]
    pub fn departed(&self) -> Option<usize> {
        self.presence.departed()
    }

    /// Shows words of this rank to the peers, in place of the last words. Peers can see them if
    /// the ranks share memory.
    pub fn show(&self, words: &Shown) {
        self.presence.show(words);
    }

    /// Returns the words that peer `rank` shows; `None` if they can't be seen. While the peer
    /// changes them, some words may be older than others.
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

/// Presence of a rank without peers.
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

//! How a communicator ends: by a thread of its own, since nothing says how long it takes.
//!
//! NCCL, `ncclCommAbort` and `ncclCommDestroy`: both wait until the graphs are gone that
//! recorded an operation of the communicator, until the device has done what stands
//! before the memory that they give back, and for the other ranks of the node to end
//! theirs. What they wait for may be somebody who waits for the caller.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::known::{Known, PAUSE};
use super::library::{DONE, UNDER_WAY};
use crate::error::CudaError;

/// How long a rank that leaves waits for the data that it still exchanges, and then for
/// all of its communicators to come to their ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a communicator is to end. Nobody calls NCCL with it from then on.
pub(super) enum End {
    /// At once: the device goes on without its peers.
    Abort(Arc<Known>),
    /// When its data has come.
    Leave(Arc<Known>),
}

/// How far a communicator has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Lives,
    /// It was told to end.
    Ends,
    /// Its data has come, or is given up.
    Done,
    Gone,
}

/// A communicator's way to its end, as others see it.
pub(crate) struct Ending {
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Ending {
    /// The thread that will end a communicator, and how to tell it.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] where there can be no further thread.
    pub(super) fn prepare() -> Result<(Arc<Self>, Sender<End>), CudaError> {
        let ending = Arc::new(Self {
            stage: Mutex::new(Stage::Lives),
            changed: Condvar::new(),
        });
        let (tells, orders) = channel();
        let seen = ending.clone();
        let name = "nccl farewell".to_owned();
        let thread = std::thread::Builder::new().name(name);
        // It is left alone: joining it would be to wait for what it waits for.
        let begun = thread.spawn(move || seen.follow(&orders));
        match begun {
            Ok(_) => Ok((ending, tells)),
            Err(error) => Err(CudaError::Unsupported(format!(
                "no thread can be started that ends what NCCL waits for: {error}; raise the limit of processes (ulimit -u)"
            ))),
        }
    }

    /// Ends the communicator as it is told to.
    fn follow(&self, orders: &Receiver<End>) {
        match orders.recv() {
            Ok(End::Abort(known)) => {
                self.reach(Stage::Done);
                known.abort();
            }
            Ok(End::Leave(known)) => self.leave(&known),
            // There never was one.
            Err(_) => {}
        }
        self.reach(Stage::Gone);
    }

    /// Peers that are gone are not waited for.
    fn leave(&self, known: &Known) {
        let end = Instant::now() + FAREWELL;
        let mut state = known.finalize();
        while state == UNDER_WAY && Instant::now() < end {
            std::thread::park_timeout(PAUSE);
            state = known.state();
        }
        self.reach(Stage::Done);
        match state {
            DONE => known.destroy(),
            _ => known.abort(),
        }
    }

    /// It was told to end.
    pub(super) fn begin(&self) {
        self.reach(Stage::Ends);
    }

    /// Waits for the data of one that was told to end, which is given up after a while.
    pub(super) fn wait_for_data(&self) {
        // Twice as long, for calls that block in spite of all.
        self.wait(Stage::Done, Instant::now() + 2 * FAREWELL);
    }

    /// Waits for the end of one that was told to, for as long as a rank waits that leaves.
    pub(super) fn wait_for_end(&self) {
        self.wait(Stage::Gone, Instant::now() + FAREWELL);
    }

    fn reach(&self, stage: Stage) {
        let mut now = self.stage();
        *now = stage.max(*now);
        self.changed.notify_all();
    }

    /// Whether `stage` has come before `end`.
    fn wait(&self, stage: Stage, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(self.stage(), left, |now| *now < stage);
        let (now, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *now >= stage
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of a rank that leaves: when this is dropped, its communicators have ended, or are left
/// behind because something that nobody here can end keeps them.
pub(crate) struct Farewell(Vec<Arc<Ending>>);

impl Farewell {
    /// Of so many communicators.
    pub(crate) fn of(endings: Vec<Arc<Ending>>) -> Self {
        Self(endings)
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let end = Instant::now() + FAREWELL;
        // What graphs that live hold has not begun to end.
        let mut begun = self.0.iter().filter(|one| *one.stage() > Stage::Lives);
        if !begun.all(|one| one.wait(Stage::Gone, end)) {
            tracing::warn!(
                "NCCL has not ended a communicator within {FAREWELL:?}: this rank leaves all the same"
            );
        }
    }
}

//! The end of a communicator, on a thread of its own, since nothing says how long it takes.
//!
//! NCCL, `ncclCommAbort` and `ncclCommDestroy`: both wait for three things. The graphs that
//! recorded an operation of the communicator must be gone. The device must have done the work
//! before the memory that is freed. The other ranks of the node must end their communicators.
//! Any of these may itself wait for the caller.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::library::{DONE, UNDER_WAY};
use super::shared_communicator::{Known, PAUSE};
use crate::error::CudaError;

/// Time for which a rank that leaves waits for the data that it still exchanges, and then for
/// the ends of all of its communicators.
const FAREWELL: Duration = Duration::from_secs(2);

/// The way in which a communicator ends. Nobody else calls NCCL with it from then on.
pub(super) enum End {
    /// At once: the device goes on without its peers.
    Abort(Arc<Known>),
    /// After its data has come.
    Leave(Arc<Known>),
}

/// Stages of a communicator's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Lives,
    /// The communicator was told to end.
    Ends,
    /// The data has come, or is given up.
    Done,
    Gone,
}

/// The stage of a communicator, which other threads can wait for.
pub(crate) struct Ending {
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Ending {
    /// Starts the thread that will end a communicator; returns the channel for its order.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if no further thread can be started.
    pub(super) fn prepare() -> Result<(Arc<Self>, Sender<End>), CudaError> {
        let ending = Arc::new(Self {
            stage: Mutex::new(Stage::Lives),
            changed: Condvar::new(),
        });
        let (tells, orders) = channel();
        let seen = ending.clone();
        let name = "nccl farewell".to_owned();
        let thread = std::thread::Builder::new().name(name);
        // Nobody joins the thread: a join would wait for whatever the thread waits for.
        let begun = thread.spawn(move || seen.follow(&orders));
        match begun {
            Ok(_) => Ok((ending, tells)),
            Err(error) => Err(CudaError::Unsupported(format!(
                "no thread can be started that ends what NCCL waits for: {error}; raise the limit of processes (ulimit -u)"
            ))),
        }
    }

    /// Ends the communicator as ordered.
    fn follow(&self, orders: &Receiver<End>) {
        match orders.recv() {
            Ok(End::Abort(known)) => {
                self.reach(Stage::Done);
                known.abort();
            }
            Ok(End::Leave(known)) => self.leave(&known),
            // There was no communicator.
            Err(_) => {}
        }
        self.reach(Stage::Gone);
    }

    /// Waits for the data of the communicator, but not for peers that are gone.
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

    /// Notes that the communicator was told to end.
    pub(super) fn begin(&self) {
        self.reach(Stage::Ends);
    }

    /// Waits until the data of an ending communicator has come, or is given up.
    pub(super) fn wait_for_data(&self) {
        // Twice as long, for calls that block in spite of all.
        self.wait(Stage::Done, Instant::now() + 2 * FAREWELL);
    }

    /// Waits for the end of an ending communicator, at most for [`FAREWELL`].
    pub(super) fn wait_for_end(&self) {
        self.wait(Stage::Gone, Instant::now() + FAREWELL);
    }

    fn reach(&self, stage: Stage) {
        let mut now = self.stage();
        *now = stage.max(*now);
        self.changed.notify_all();
    }

    /// Returns true if `stage` was reached before `end`.
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

/// Guard of a rank that leaves. When it is dropped, the rank's communicators have ended, or are
/// left behind because something that nobody here can end keeps them.
pub(crate) struct Farewell(Vec<Arc<Ending>>);

impl Farewell {
    /// Guard for the communicators of `endings`.
    pub(crate) fn of(endings: Vec<Arc<Ending>>) -> Self {
        Self(endings)
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let end = Instant::now() + FAREWELL;
        // Communicators that living graphs hold have not begun to end.
        let mut begun = self.0.iter().filter(|one| *one.stage() > Stage::Lives);
        if !begun.all(|one| one.wait(Stage::Gone, end)) {
            tracing::warn!(
                "NCCL has not ended a communicator within {FAREWELL:?}: this rank leaves all the same"
            );
        }
    }
}

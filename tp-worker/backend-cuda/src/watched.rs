//! Who ends what would wait for ever for peers' data: a thread that looks at the
//! devices' own ways, at the host's group and at the clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_collective::{AbortHandle, CollectiveError};

use crate::error::CudaError;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long data of a peer that has left may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A way from device to device that waits for ever, if nobody ends it.
pub(crate) trait Way: Send + Sync {
    /// Why it has failed, if it has.
    fn failed(&self) -> Option<String>;
    /// Ends what the device waits for, without an error there.
    fn abort(&self);
}

/// What the devices' own way has to do with, as both threads see it.
pub(crate) struct Watched {
    rank: usize,
    /// The longest that data may be on its way.
    patience: Duration,
    /// Of the host's group, which ends together with the devices'.
    host: AbortHandle,
    ways: Vec<Arc<dyn Way>>,
    /// Since when data may be on its way that nobody has waited for.
    since: Mutex<Option<Instant>>,
    /// What ended it.
    ended: OnceLock<CollectiveError>,
}

impl Watched {
    pub(crate) fn new(
        rank: usize,
        patience: Duration,
        host: AbortHandle,
        ways: Vec<Arc<dyn Way>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rank,
            patience,
            host,
            ways,
            since: Mutex::default(),
            ended: OnceLock::new(),
        })
    }

    /// Data is on its way from now on.
    pub(crate) fn begin(&self) {
        self.since().get_or_insert_with(Instant::now);
    }

    /// All that was on its way has come.
    ///
    /// # Errors
    /// [`CudaError::Peers`] where it has not: what lies there is nobody's.
    pub(crate) fn arrived(&self) -> Result<(), CudaError> {
        *self.since() = None;
        self.check()
    }

    /// # Errors
    /// [`CudaError::Peers`] where it was ended.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        match self.ended.get() {
            None => Ok(()),
            Some(error) => Err(CudaError::Peers(Box::new(error.clone()))),
        }
    }

    /// Ends both ways, for this rank and for whoever waits for it.
    fn end(&self, error: CollectiveError) {
        tracing::debug!(%error, "the devices' collectives end");
        // Before the stream goes on, so that nobody takes what it brings for data.
        let _ = self.ended.set(error);
        self.ways.iter().for_each(|way| way.abort());
        self.host.abort();
    }

    /// Why it has to end now, if it has.
    fn look(&self, left: &mut Option<Instant>) -> Option<CollectiveError> {
        let rank = self.rank;
        if self.host.is_aborted() {
            return Some(CollectiveError::Aborted { rank });
        }
        if let Some(reason) = self.ways.iter().find_map(|way| way.failed()) {
            return Some(CollectiveError::Way { rank, reason });
        }
        let waited = (*self.since()).map(|since| since.elapsed());
        let Some(waited) = waited else {
            *left = None;
            return None;
        };
        if waited >= self.patience {
            return Some(CollectiveError::Stalled { rank, waited });
        }
        let peer = self.host.departed()?;
        let gone = left.get_or_insert_with(Instant::now).elapsed();
        (gone >= LAST_WORDS).then_some(CollectiveError::Deserted { rank, peer })
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, which ends when this is dropped.
pub(crate) struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// # Errors
    /// [`CudaError::Unsupported`] where there can be no further thread.
    pub(crate) fn over(watched: Arc<Watched>) -> Result<Self, CudaError> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = stop.clone();
        let watch = move || {
            let (stop, changed) = &*seen;
            let mut left = None;
            let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                let waited = changed.wait_timeout(stopped, LOOK);
                (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if let Some(error) = watched.look(&mut left) {
                    return watched.end(error);
                }
            }
        };
        let name = "nccl watchdog".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(watch);
        let thread = thread.map_err(|error| {
            CudaError::Unsupported(format!(
                "no thread can be started that watches over NCCL: {error}; raise the limit of processes (ulimit -u)"
            ))
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (stop, changed) = &*self.stop;
        *stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

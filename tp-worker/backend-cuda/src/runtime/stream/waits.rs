//! The end of a stream's work as the device sees it: a moment before the program knows of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Event, Stream};
use crate::error::CudaError;

/// An event to record whenever the program begins to wait for the stream.
#[derive(Default)]
pub(super) struct Waits {
    on: AtomicBool,
    of: Mutex<Marked>,
}

#[derive(Default)]
struct Marked {
    event: Option<Arc<Event>>,
    recorded: bool,
}

impl Waits {
    fn of(&self) -> MutexGuard<'_, Marked> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    /// From now on records `event` before each wait for this stream, so that the last of them
    /// counts; with `None`, nothing. Returns true if the earlier event was recorded so.
    pub(crate) fn mark_waits(&self, event: Option<Arc<Event>>) -> bool {
        self.waits.on.store(event.is_some(), Ordering::Relaxed);
        let marked = Marked {
            event,
            recorded: false,
        };
        std::mem::replace(&mut *self.waits.of(), marked).recorded
    }

    /// Records the event of [`Self::mark_waits`], if there is one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(super) fn begin_wait(&self) -> Result<(), CudaError> {
        if !self.waits.on.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut marked = self.waits.of();
        if let Some(event) = &marked.event {
            self.record(event)?;
            marked.recorded = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Buffer, Context};

    /// The time of work ends where the program begins to wait for it, whatever comes later.
    #[test]
    fn the_last_wait_is_marked() -> Result<(), CudaError> {
        let context = Context::open(0)?;
        let stream = Stream::new(&context)?;
        let mut buffer = Buffer::<u8>::new(&context, 64, "a test's")?;
        let (begun, ended) = (Event::timed(&context)?, Arc::new(Event::timed(&context)?));
        stream.record(&begun)?;
        assert!(!stream.mark_waits(Some(ended.clone())));
        stream.fill(&mut buffer, 1)?;
        stream.synchronize()?;
        let first = ended.since(&begun)?;
        // Later work has no part in it, unless the program waits for that too.
        for _ in 0..50 {
            stream.fill(&mut buffer, 2)?;
        }
        let behind = Event::timed(&context)?;
        stream.record(&behind)?;
        behind.synchronize()?;
        assert!((ended.since(&begun)? - first).abs() < f64::EPSILON);
        stream.synchronize()?;
        assert!(ended.since(&begun)? >= behind.since(&begun)?);
        assert!(stream.mark_waits(None));
        stream.synchronize()?;
        assert!(!stream.mark_waits(None));
        Ok(())
    }
}

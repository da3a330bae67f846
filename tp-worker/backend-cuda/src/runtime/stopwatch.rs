//! Time that the device takes for a part of a step, by its own clock. The host sees only when
//! all of the step is done.

use std::sync::Arc;

use crate::error::CudaError;
use crate::runtime::{Context, Event, Stream};
use crate::version::Version;

/// Lowest driver version with `cuEventElapsedTime_v2`, the name that CUDA 13 knows.
pub(crate) const CLOCK: Version = Version {
    major: 12,
    minor: 8,
};

/// Events before and behind the timed work.
pub(crate) struct Stopwatch {
    begun: Event,
    ended: Event,
    /// True if both were recorded since the last reading.
    stopped: bool,
}

impl Stopwatch {
    /// Makes the events; `None` if the driver is too old to tell times.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Option<Self>, CudaError> {
        if context.gpu().driver() < CLOCK {
            return Ok(None);
        }
        Ok(Some(Self {
            begun: Event::timed(context)?,
            ended: Event::timed(context)?,
            stopped: false,
        }))
    }

    /// Starts the time at this place in the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn start(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.stopped = false;
        stream.record(&self.begun)
    }

    /// Stops the time at this place in the stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn stop(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.ended)?;
        self.stopped = true;
        Ok(())
    }

    /// Microseconds between the start and the stop, which must have happened; 0 if nothing was
    /// timed since the last call.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn read(&mut self) -> Result<u32, CudaError> {
        if !std::mem::take(&mut self.stopped) {
            return Ok(0);
        }
        let seconds = self.ended.since(&self.begun)?;
        Ok((seconds * 1e6).round() as u32)
    }
}

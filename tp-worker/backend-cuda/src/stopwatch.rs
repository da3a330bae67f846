//! How long the device takes for a part of a step, by its own clock: the host sees when
//! all of it is done, and nothing in between.

use std::sync::Arc;

use crate::context::Context;
use crate::error::CudaError;
use crate::stream::{Event, Stream};
use crate::version::Version;

/// Drivers before it have no `cuEventElapsedTime_v2`, the name that CUDA 13 knows.
pub(crate) const CLOCK: Version = Version {
    major: 12,
    minor: 8,
};

/// Moments before and behind what is timed.
pub(crate) struct Stopwatch {
    begun: Event,
    ended: Event,
    /// Both were recorded since it was read last.
    stopped: bool,
}

impl Stopwatch {
    /// `None` where the driver is too old to tell times.
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

    /// From here on.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn start(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.stopped = false;
        stream.record(&self.begun)
    }

    /// Up to here.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn stop(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.record(&self.ended)?;
        self.stopped = true;
        Ok(())
    }

    /// Microseconds between the two, which have happened; 0 if nothing was timed since
    /// this was asked last.
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

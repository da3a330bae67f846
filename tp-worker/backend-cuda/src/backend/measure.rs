//! Times that the device takes, for benchmarks.

use lockstep_backend::BackendError;

use super::CudaBackend;
use crate::error::CudaError;
use crate::runtime::Meter;

impl CudaBackend {
    /// Allocates two arrays of `bytes` for measurements; earlier ones are freed.
    ///
    /// # Errors
    /// [`CudaError`]: the arrays have no room, or a kernel is not available.
    pub fn prepare_meter(&mut self, bytes: usize) -> Result<(), CudaError> {
        self.meter = None;
        self.meter = Some(Meter::new(&self.stream, &self.compiler, bytes)?);
        Ok(())
    }

    /// Returns the seconds of a copy from one of the two arrays to the other, the seconds of
    /// reading one, and the bytes of each.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; [`CudaError::Unsupported`] before
    /// [`Self::prepare_meter`].
    pub fn measure_memory(&mut self) -> Result<(f64, f64, usize), CudaError> {
        let stream = &self.stream;
        let meter = self.meter.as_mut().ok_or_else(unprepared)?;
        meter.begin(stream)?;
        meter.copy(stream)?;
        let copied = meter.end(stream)?;
        meter.begin(stream)?;
        meter.read(stream)?;
        Ok((copied, meter.end(stream)?, meter.bytes()))
    }

    /// Seconds that the device takes for the operations that `work` queues, by the device's
    /// clock, from when it is free. `copies` copies of the arrays run first. During them the
    /// host gets ahead, so the device has all of the work when it begins it. With no copies,
    /// the device may wait for the host in between.
    ///
    /// # Errors
    /// The errors of `work`; [`CudaError::Unsupported`] before [`Self::prepare_meter`].
    pub fn measure(
        &mut self,
        copies: usize,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<f64, BackendError> {
        self.stream.synchronize()?;
        let meter = self.meter.as_mut().ok_or_else(unprepared)?;
        for _ in 0..copies {
            meter.copy(&self.stream)?;
        }
        meter.begin(&self.stream)?;
        work(self)?;
        self.failures()?;
        let meter = self.meter.as_ref().ok_or_else(unprepared)?;
        Ok(meter.end(&self.stream)?)
    }
}

fn unprepared() -> CudaError {
    CudaError::Unsupported("nothing was prepared to measure with: this is a bug".to_owned())
}

//! Times that the device takes, for benchmarks.

use lockstep_backend::BackendError;

use super::CudaBackend;
use crate::error::CudaError;
use crate::runtime::{ComparedBits, Meter};

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
        meter.read(stream, meter.bytes())?;
        Ok((copied, meter.end(stream)?, meter.bytes()))
    }

    /// Seconds that the device takes for the operations that `work` queues, by the device's
    /// clock, from when it is free. If `work` waits for its operations, nothing may be queued
    /// behind the last wait: the time ends there. `copies` copies of the arrays run first. During
    /// them the host gets ahead, so the device has all of the work when it begins it. With no
    /// copies, the device may wait for the host in between.
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
        let done = work(self).and_then(|()| Ok(self.failures()?));
        if done.is_err() {
            self.stream.mark_waits(None);
        }
        done?;
        let meter = self.meter.as_ref().ok_or_else(unprepared)?;
        Ok(meter.end(&self.stream)?)
    }

    /// From now on runs, of all operations, only kernels with these names; without names,
    /// everything. The operations' results are then no results. Returns the number of
    /// launches that the earlier names let run.
    pub fn select_kernels(&mut self, names: &'static [&'static str]) -> usize {
        self.stream.selection().select(names)
    }

    /// Queues the reading of the first `bytes` of an array of [`Self::prepare_meter`]. A
    /// failure is reported as with operations.
    pub fn read_memory(&mut self, bytes: usize) {
        let meter = self.meter.as_ref().ok_or_else(unprepared);
        let done = meter.and_then(|meter| meter.read(&self.stream, bytes));
        self.keep(done);
    }

    /// Queues a kernel of `blocks` blocks that does nothing. A failure is reported as with
    /// operations.
    pub fn launch_empty(&mut self, blocks: u32) {
        let meter = self.meter.as_ref().ok_or_else(unprepared);
        let done = meter.and_then(|meter| meter.launch_empty(&self.stream, blocks));
        self.keep(done);
    }

    /// Multiplies the same random operands by both kinds of tensor-core instructions that
    /// Hopper has, and compares the bits.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] on other GPUs; the errors of [`crate::Compiler::compile`].
    pub fn compare_bits(&self) -> Result<ComparedBits, CudaError> {
        ComparedBits::measure(&self.stream, &self.compiler)
    }
}

fn unprepared() -> CudaError {
    CudaError::Unsupported("nothing was prepared to measure with: this is a bug".to_owned())
}

//! How long a device takes, by its own clock.

use lockstep_backend::BackendError;

use crate::DeviceError;

/// Work on a device of `B` that is timed.
pub type Work<'a, B> = &'a mut dyn FnMut(&mut B) -> Result<(), BackendError>;

/// A device that times its work itself, beside the program that asks for it.
pub trait Metered: Sized {
    /// Takes twice `bytes` of the device's memory to measure with.
    ///
    /// # Errors
    /// [`DeviceError`]: memory or kernels that can't be had.
    fn prepare_meter(&mut self, bytes: usize) -> Result<(), DeviceError>;

    /// Copies that memory once, and reads half of it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn measure_memory(&mut self) -> Result<MemoryTimes, DeviceError>;

    /// Seconds that the device takes for what `work` asks of it. `copies` of that memory
    /// come first, which are not counted, and meanwhile the host gets ahead; without
    /// them what the device waits for the host in between is counted, too.
    ///
    /// # Errors
    /// Those of `work`.
    fn measure(&mut self, copies: usize, work: Work<'_, Self>) -> Result<f64, BackendError>;

    /// What recorded passes were seen to take of the device's memory: how many there
    /// are, and their bytes.
    fn recorded(&self) -> (u64, u64);

    /// Bytes of the device's memory that what ranks exchange their data by was seen to take.
    fn exchanged(&self) -> u64 {
        0
    }
}

/// How long memory took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryTimes {
    /// Bytes that were copied, and read.
    pub bytes: usize,
    /// Seconds of the copy.
    pub copied: f64,
    /// Seconds of the reading.
    pub read: f64,
}

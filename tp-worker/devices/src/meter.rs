//! Times of a device, by its own clock.

use lockstep_backend::BackendError;

use crate::DeviceError;

/// Work on a device of `B` that is timed.
pub type Work<'a, B> = &'a mut dyn FnMut(&mut B) -> Result<(), BackendError>;

/// A device that times its work itself, independent of the program that asks for the work.
pub trait Metered: Sized {
    /// Takes twice `bytes` of the device's memory to measure with.
    ///
    /// # Errors
    /// [`DeviceError`] if memory or kernels can't be had.
    fn prepare_meter(&mut self, bytes: usize) -> Result<(), DeviceError>;

    /// Copies that memory once, and reads half of it.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn measure_memory(&mut self) -> Result<MemoryTimes, DeviceError>;

    /// Returns the device's time for the operations of `work`, in seconds. Before them the
    /// device makes `copies` copies of that memory, which are not counted. Meanwhile the host
    /// gets ahead. Without copies, the time in which the device waits for the host counts too.
    ///
    /// # Errors
    /// The errors of `work`.
    fn measure(&mut self, copies: usize, work: Work<'_, Self>) -> Result<f64, BackendError>;

    /// Returns the number of recorded passes, and the bytes of the device's memory that they
    /// were seen to take.
    fn recorded(&self) -> (u64, u64);

    /// Returns the bytes of the device's memory that the ranks' collectives were seen to take.
    fn exchanged(&self) -> u64 {
        0
    }
}

/// Times of copying and reading memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryTimes {
    /// Number of bytes that were copied, and read.
    pub bytes: usize,
    /// Seconds of the copy.
    pub copied: f64,
    /// Seconds of the reading.
    pub read: f64,
}

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

    /// From now on runs, of all operations, only kernels with these names; without names,
    /// everything. Operations give no results meanwhile. Returns the number of launches that
    /// the earlier names let run.
    fn select_kernels(&mut self, names: &'static [&'static str]) -> usize;

    /// Queues the reading of the first `bytes` of that memory. A failure is reported as with
    /// operations.
    fn read_memory(&mut self, bytes: usize);

    /// Queues a kernel of `blocks` blocks that does nothing. A failure is reported as with
    /// operations.
    fn launch_empty(&mut self, blocks: u32);

    /// Multiplies the same operands by the two kinds of tensor-core instructions that the device
    /// may have, and compares the bits of the sums.
    ///
    /// # Errors
    /// [`DeviceError`] with the reason if the device has not both.
    fn compare_bits(&mut self) -> Result<ComparedBits, DeviceError>;

    /// From now on loads weights that are integers as the 32-bit floats that these stand for,
    /// and multiplies them with inputs that are not rounded.
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no such way.
    fn dequantize_weights(&mut self) -> Result<(), DeviceError> {
        let why = "`lockstep bench quality` measures on processors";
        Err(DeviceError::new(BackendError::Unsupported(why.to_owned())))
    }

    /// Returns the number of recorded passes, and the bytes of the device's memory that they
    /// were seen to take.
    fn recorded(&self) -> (u64, u64);

    /// Returns the bytes of the device's memory that the ranks' collectives were seen to take.
    fn exchanged(&self) -> u64 {
        0
    }
}

/// Sums of products by one kind of instruction, compared with the same sums by another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparedBits {
    /// Number of sums.
    pub sums: usize,
    /// Number of sums whose bits differ.
    pub different: usize,
    /// Largest difference, as a share of the largest sum.
    pub largest: f64,
    /// Columns that each sum multiplies.
    pub columns: usize,
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

//! The limits of a device, to compare its kernels with (Williams, Waterman & Patterson,
//! "Roofline", CACM 52(4), 2009).

pub use lockstep_backend_cpu::roofline::{Arithmetic, Clock, Measured};

/// One measurement of all limits that may bind a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    /// Bytes per second read from memory.
    pub read: Measured,
    /// Bytes per second read from memory and written back. As many are written as read.
    pub update: Measured,
    /// Operations per second of each arithmetic that the device has. A multiplication and an
    /// addition are two operations.
    pub peaks: Vec<(Arithmetic, Measured)>,
    /// Seconds until all threads have begun and ended a job.
    pub barrier: Measured,
}

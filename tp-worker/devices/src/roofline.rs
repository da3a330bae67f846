//! What a device can do at most, for its kernels to be held against (Williams,
//! Waterman & Patterson, "Roofline", CACM 52(4), 2009).

pub use lockstep_backend_cpu::roofline::{Arithmetic, Clock, Measured};

/// One measurement of everything that may bind a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    /// Bytes per second read from memory.
    pub read: Measured,
    /// Bytes per second read from memory and written back, as many as were read.
    pub update: Measured,
    /// Operations per second of each arithmetic that the device has; a
    /// multiplication and an addition are two.
    pub peaks: Vec<(Arithmetic, Measured)>,
    /// Seconds until all threads have begun a job and ended it.
    pub barrier: Measured,
}

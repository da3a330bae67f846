//! Kernels behind kernels, which may begin before those have ended: programmatic dependent
//! launch.
//!
//! CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization".

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;

use super::Stream;

/// Says whether the last work of a stream is a kernel that waits for earlier work by itself.
///
/// Only behind such a kernel may another one begin early. A kernel that does not wait could be
/// one that writes weights, which the next kernel would read before its wait. Copies, memsets,
/// events, graphs and the work of libraries end a chain, since recorded edges of this kind lead
/// from kernels to kernels alone.
#[derive(Debug, Default)]
pub(super) struct Chain(AtomicBool);

impl Stream {
    /// Handle for work other than a launch. The kernel behind that work waits for its end.
    pub(crate) fn raw(&self) -> CUstream {
        self.chain.0.store(false, Ordering::Relaxed);
        self.raw
    }

    /// Handle for a launch, and true if the launch may begin before the work before it has
    /// ended. `waits` says of the kernel that it waits for that work by itself.
    pub(crate) fn raw_for_launch(&self, waits: bool) -> (CUstream, bool) {
        let behind = self.chain.0.swap(waits, Ordering::Relaxed);
        (self.raw, behind && waits)
    }
}

//! An opened GPU.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUcontext;

use crate::error::{CudaError, driver};
use crate::runtime::Gpu;
use crate::runtime::switches::Switches;

/// A GPU's primary context, released when its last user is gone.
///
/// The driver has a current context per thread. Every function here that calls the driver makes
/// its own context current first, so threads need not care.
pub struct Context {
    gpu: Gpu,
    raw: CUcontext,
    switches: Switches,
}

// SAFETY: a context may be used by any thread that makes it current, by several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens GPU `ordinal`, counted from 0 as the driver counts.
    ///
    /// # Errors
    /// The errors of [`Gpu::find`] and [`Self::of`].
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        Self::of(Gpu::find(ordinal)?)
    }

    /// Opens a GPU that [`Gpu::find`] returned.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; [`CudaError::Unsupported`] for a value of `LOCKSTEP_CUDA_PDL`,
    /// `LOCKSTEP_CUDA_PDL_TRIGGER` or `LOCKSTEP_CUDA_PREFETCH` that is none, or that GPU or driver
    /// can't obey.
    pub fn of(gpu: Gpu) -> Result<Arc<Self>, CudaError> {
        let value = |name: &str| std::env::var_os(name);
        let switches = Switches::read(gpu.capability(), gpu.driver(), value)?;
        // SAFETY: the device is one that the driver named.
        let raw = unsafe { result::primary_ctx::retain(gpu.device()) };
        Ok(Arc::new(Self {
            raw: raw.map_err(driver("cuDevicePrimaryCtxRetain"))?,
            gpu,
            switches,
        }))
    }

    /// The GPU of this context.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Switches of the overlap of kernels on this GPU.
    pub(crate) fn switches(&self) -> Switches {
        self.switches
    }

    /// Bytes of free device memory, and bytes of all of it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        result::mem_get_info().map_err(driver("cuMemGetInfo"))
    }

    /// Makes this the current context of the calling thread.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is held until `self` is dropped.
        unsafe { result::ctx::set_current(self.raw) }.map_err(driver("cuCtxSetCurrent"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once; nobody is left to be told of a failure.
        let _ = unsafe { result::primary_ctx::release(self.gpu.device()) };
    }
}

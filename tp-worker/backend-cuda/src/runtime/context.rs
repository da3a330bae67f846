//! An opened GPU.

use std::{ffi::OsStr, sync::Arc};

use cudarc::driver::result;
use cudarc::driver::sys::CUcontext;

use crate::error::{CudaError, driver};
use crate::runtime::Gpu;
use crate::version::Version;

/// Variable of the environment that turns programmatic dependent launch off, with the value 0, or
/// asks for it, with the value 1.
const SWITCH: &str = "LOCKSTEP_CUDA_PDL";
/// Lowest compute capability with programmatic dependent launch.
const LEAST_CAPABILITY: Version = Version { major: 9, minor: 0 };
/// First driver, by the version of CUDA that it is for, that records such launches in graphs.
const LEAST_DRIVER: Version = Version {
    major: 12,
    minor: 3,
};

/// Returns true if kernels may begin early on a GPU, for the value of [`SWITCH`].
fn overlaps_kernels(
    capability: Version,
    driver: Version,
    asked: Option<&OsStr>,
) -> Result<bool, CudaError> {
    let able = capability >= LEAST_CAPABILITY && driver >= LEAST_DRIVER;
    let Some(asked) = asked else {
        return Ok(able);
    };
    match asked.to_str() {
        Some("0") => Ok(false),
        Some("1") if able => Ok(true),
        Some("1") => Err(CudaError::Unsupported(format!(
            "{SWITCH} is 1, but kernels begin early from compute capability {LEAST_CAPABILITY} \
             and drivers for CUDA {LEAST_DRIVER} on: this GPU's is {capability}, its driver is \
             for CUDA {driver}; leave {SWITCH} out"
        ))),
        _ => Err(CudaError::Unsupported(format!(
            "{SWITCH} is `{}`: give 0 to let no kernel begin before the one before it has ended, or 1",
            asked.display()
        ))),
    }
}

/// A GPU's primary context, released when its last user is gone.
///
/// The driver has a current context per thread. Every function here that calls the driver makes
/// its own context current first, so threads need not care.
pub struct Context {
    gpu: Gpu,
    raw: CUcontext,
    overlaps_kernels: bool,
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
    /// [`CudaError::Driver`]; [`CudaError::Unsupported`] for a value of `LOCKSTEP_CUDA_PDL` that
    /// is neither 0 nor 1, or is 1 where GPU or driver can't obey it.
    pub fn of(gpu: Gpu) -> Result<Arc<Self>, CudaError> {
        let asked = std::env::var_os(SWITCH);
        let overlaps_kernels = overlaps_kernels(gpu.capability(), gpu.driver(), asked.as_deref())?;
        // SAFETY: the device is one that the driver named.
        let raw = unsafe { result::primary_ctx::retain(gpu.device()) };
        Ok(Arc::new(Self {
            raw: raw.map_err(driver("cuDevicePrimaryCtxRetain"))?,
            gpu,
            overlaps_kernels,
        }))
    }

    /// The GPU of this context.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns true if kernels may begin before the kernels before them have ended, by
    /// programmatic dependent launch.
    pub(crate) fn overlaps_kernels(&self) -> bool {
        self.overlaps_kernels
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

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::{Version, overlaps_kernels};

    #[test]
    fn kernels_overlap_where_device_driver_and_user_let_them() {
        let version = |(major, minor)| Version { major, minor };
        let able = |capability, driver, asked: Option<&str>| {
            let asked = asked.map(OsStr::new);
            let found = overlaps_kernels(version(capability), version(driver), asked);
            found.map_err(|error| error.to_string())
        };
        assert_eq!(able((9, 0), (12, 3), None), Ok(true));
        assert_eq!(able((12, 0), (13, 0), Some("1")), Ok(true));
        assert_eq!(able((9, 0), (13, 0), Some("0")), Ok(false));
        assert_eq!(able((8, 9), (13, 0), None), Ok(false));
        assert_eq!(able((9, 0), (12, 2), None), Ok(false));
        assert_eq!(able((8, 9), (13, 0), Some("0")), Ok(false));
        // What is asked for is done or refused.
        for (capability, driver) in [((8, 9), (13, 0)), ((9, 0), (12, 2))] {
            let error = able(capability, driver, Some("1")).unwrap_err();
            for version in [version(capability), version(driver)] {
                assert!(error.contains(&version.to_string()), "{error}");
            }
            assert!(error.contains("leave LOCKSTEP_CUDA_PDL out"), "{error}");
        }
        assert!(able((9, 0), (13, 0), Some("no")).is_err());
        let text = overlaps_kernels(
            version((9, 0)),
            version((13, 0)),
            Some(OsStr::from_bytes(b"\xff")),
        );
        assert!(text.is_err());
    }
}

//! One GPU, as this process sees it.

use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{result, sys};

use crate::error::{CudaError, driver};
use crate::version::Version;

/// The oldest driver that serves, by the version of CUDA that it is for.
const OLDEST_DRIVER: Version = Version {
    major: 12,
    minor: 0,
};
/// Copies to shared memory beside the program, and bf16 on tensor cores.
const OLDEST_CAPABILITY: Version = Version { major: 8, minor: 0 };

/// A GPU's primary context, held until nobody needs it.
///
/// The driver knows a current context per thread, so whatever calls the driver
/// makes its own current first; threads need not care.
pub struct Context {
    device: CUdevice,
    raw: CUcontext,
    name: String,
    driver: Version,
    capability: Version,
    multiprocessors: u32,
    block_memory: usize,
}

// SAFETY: a context may be used by any thread that makes it current, by several
// at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens GPU `ordinal`, counted from 0 as the driver counts.
    ///
    /// # Errors
    /// What is missing or too old: library, driver, device.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let (version, count) = (start_driver()?, Self::count()?);
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        let device = result::device::get(number).map_err(driver("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(driver("cuDeviceGetName"))?;
        let capability = Version {
            major: attribute(
                device,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            )?,
            minor: attribute(
                device,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )?,
        };
        if capability < OLDEST_CAPABILITY {
            return Err(CudaError::OldDevice {
                name,
                found: capability,
                needed: OLDEST_CAPABILITY,
            });
        }
        let block_memory = attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        let multiprocessors =
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the device is one that the driver named.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = raw.map_err(driver("cuDevicePrimaryCtxRetain"))?;
        Ok(Arc::new(Self {
            device,
            raw,
            name,
            driver: version,
            capability,
            multiprocessors,
            block_memory: block_memory as usize,
        }))
    }

    /// How many GPUs the driver sees.
    ///
    /// # Errors
    /// What is missing or too old: library, driver, device.
    pub fn count() -> Result<usize, CudaError> {
        start_driver()?;
        let count = result::device::get_count().map_err(driver("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// For people: "NVIDIA H100 80GB HBM3, sm_90, driver for CUDA 13.0".
    pub fn describe(&self) -> String {
        let Self { name, driver, .. } = self;
        format!("{name}, {}, driver for CUDA {driver}", self.architecture())
    }

    /// What kernels are compiled for: "sm_90".
    pub fn architecture(&self) -> String {
        let Version { major, minor } = self.capability;
        format!("sm_{major}{minor}")
    }

    /// The version of CUDA that the driver is for.
    pub fn driver(&self) -> Version {
        self.driver
    }

    /// How many blocks run at once at the least.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Bytes of shared memory that a block may have.
    pub fn block_memory(&self) -> usize {
        self.block_memory
    }

    /// Bytes of device memory that are free, and all there are.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        result::mem_get_info().map_err(driver("cuMemGetInfo"))
    }

    /// Makes this the current context of the thread.
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
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Finds and starts the driver; returns the version of CUDA that it is for.
fn start_driver() -> Result<Version, CudaError> {
    // SAFETY: looks for a library and does nothing with it.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing {
            library: "libcuda.so",
            remedy: "install the NVIDIA driver, in a container run it with --gpus",
        });
    }
    result::init().map_err(|source| match source.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => CudaError::NoDevice,
        _ => driver("cuInit")(source),
    })?;
    let mut number = 0;
    // SAFETY: writes one number.
    let version = unsafe { sys::cuDriverGetVersion(&raw mut number) }.result();
    version.map_err(driver("cuDriverGetVersion"))?;
    let number = u32::try_from(number).unwrap_or_default();
    let found = Version {
        major: number / 1000,
        minor: number % 1000 / 10,
    };
    if found < OLDEST_DRIVER {
        return Err(CudaError::OldDriver {
            what: "this program".to_owned(),
            found,
            needed: OLDEST_DRIVER,
        });
    }
    Ok(found)
}

fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32, CudaError> {
    // SAFETY: the device is one that the driver named.
    let value = unsafe { result::device::get_attribute(device, attribute) };
    let value = value.map_err(driver("cuDeviceGetAttribute"))?;
    Ok(u32::try_from(value).unwrap_or_default())
}

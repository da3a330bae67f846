//! Properties of one GPU as the driver describes them. Asking takes nothing of the GPU.

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{result, sys};

use crate::error::{CudaError, driver};
use crate::version::Version;

/// The oldest driver that serves, by the version of CUDA that it is for.
const OLDEST_DRIVER: Version = Version {
    major: 12,
    minor: 0,
};
/// Lowest compute capability that serves: it has asynchronous copies to shared memory, and bf16
/// on tensor cores.
const OLDEST_CAPABILITY: Version = Version { major: 8, minor: 0 };

/// A GPU with its properties.
#[derive(Debug, Clone)]
pub struct Gpu {
    device: CUdevice,
    ordinal: usize,
    name: String,
    driver: Version,
    capability: Version,
    multiprocessors: u32,
    block_memory: usize,
    shared_memory: usize,
    memory: usize,
}

impl Gpu {
    /// Finds GPU `ordinal`, counted from 0 as the driver counts.
    ///
    /// # Errors
    /// [`CudaError`] that names the missing or old part: library, driver or device.
    pub fn find(ordinal: usize) -> Result<Self, CudaError> {
        let (version, count) = (start_driver()?, Self::count()?);
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        let device = result::device::get(number).map_err(driver("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(driver("cuDeviceGetName"))?;
        let ask = |what| attribute(device, what);
        let capability = Version {
            major: ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        if capability < OLDEST_CAPABILITY {
            return Err(CudaError::OldDevice {
                name,
                found: capability,
                needed: OLDEST_CAPABILITY,
            });
        }
        // SAFETY: the device is one that the driver named.
        let memory = unsafe { result::device::total_mem(device) };
        let block_memory = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_memory = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        Ok(Self {
            device,
            ordinal,
            name,
            driver: version,
            capability,
            multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            block_memory: ask(block_memory)? as usize,
            shared_memory: ask(shared_memory)? as usize,
            memory: memory.map_err(driver("cuDeviceTotalMem"))?,
        })
    }

    /// Number of GPUs that the driver sees.
    ///
    /// # Errors
    /// [`CudaError`] that names the missing or old part: library, driver or device.
    pub fn count() -> Result<usize, CudaError> {
        start_driver()?;
        let count = result::device::get_count().map_err(driver("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// Refuses one of CUDA's libraries if it is newer than the driver.
    pub(crate) fn check_library(
        &self,
        library: &'static str,
        version: Version,
    ) -> Result<(), CudaError> {
        if version.major <= self.driver.major {
            return Ok(());
        }
        let Version { major, .. } = self.driver;
        Err(CudaError::OldDriver {
            what: format!("{library} {version}"),
            found: self.driver,
            needed: Version {
                minor: 0,
                ..version
            },
            remedy: format!(
                "install a newer driver, or name the folder of {library} {major} first in LD_LIBRARY_PATH"
            ),
        })
    }

    /// Description for people: "NVIDIA H100 80GB HBM3, sm_90, driver for CUDA 13.0".
    pub fn describe(&self) -> String {
        format!("{}, {}", self.name, self.version())
    }

    /// The maker's name of the GPU: "NVIDIA H100 80GB HBM3".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Architecture and driver: "sm_90, driver for CUDA 13.0".
    pub fn version(&self) -> String {
        let Version { major, minor } = self.capability;
        format!("sm_{major}{minor}, driver for CUDA {}", self.driver)
    }

    /// Number of the GPU, as the driver counts.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// UUID of the GPU: no other GPU of any machine has the same one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn identity(&self) -> Result<[u32; 4], CudaError> {
        let found = result::device::get_uuid(self.device);
        let bytes = found.map_err(driver("cuDeviceGetUuid"))?.bytes;
        Ok(bytemuck::cast(bytes))
    }

    /// Compute capability, such as 9.0.
    pub fn capability(&self) -> Version {
        self.capability
    }

    /// Version of CUDA that the driver is for.
    pub fn driver(&self) -> Version {
        self.driver
    }

    /// Number of multiprocessors: at least as many blocks run at once.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Largest size of a block's shared memory, in bytes.
    pub fn block_memory(&self) -> usize {
        self.block_memory
    }

    /// Shared memory of a multiprocessor, which its blocks divide among them, in bytes.
    pub fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Bytes of the GPU's memory.
    pub fn memory(&self) -> usize {
        self.memory
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
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
            remedy: "install a newer driver".to_owned(),
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

//! The devices by name. This crate alone knows concrete backends.
//!
//! All other code is written against [`Backend`](lockstep_backend::Backend), and runs through
//! [`Registry::run`] on the device that is configured. A further device needs a crate with its
//! backend, a file like `cpu` here that implements [`Device`] for it, and its line in the table
//! below.

#![forbid(unsafe_code)]

mod cpu;
mod cuda;
mod device;
mod error;
mod finding;
mod footprint;
mod meter;
mod registry;
mod roofline;

pub use cuda::{KERNELS, kernels_not_kept};
pub use device::{Collectives, Device, DeviceOptions};
pub use error::DeviceError;
pub use finding::Finding;
pub use footprint::{DeviceFootprint, device_memory};
pub use meter::{ComparedBits, MemoryTimes, Metered, Work};
pub use registry::OnDevice;
pub use roofline::{Arithmetic, Clock, Measured, Roofline};

use lockstep_backend_cpu::CpuBackend;
use lockstep_backend_cuda::CudaBackend;

// For each device its name here, its kind in the configuration, and its backend.
registry::devices! {
    cpu: Cpu, CpuBackend;
    cuda: Cuda, CudaBackend;
}

//! The devices by name: the one crate that knows concrete backends.
//!
//! Everything else is written against [`Backend`](lockstep_backend::Backend) and
//! runs through [`Registry::run`] on the device that it is told. A device more is
//! a crate with its backend, a file like `cpu` here that implements [`Device`] for
//! it, and its line in the table below.

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

pub use device::{Collectives, Device, DeviceOptions};
pub use error::DeviceError;
pub use finding::Finding;
pub use footprint::{DeviceFootprint, device_memory};
pub use meter::{MemoryTimes, Metered, Work};
pub use registry::OnDevice;
pub use roofline::{Arithmetic, Clock, Measured, Roofline};

use lockstep_backend_cpu::CpuBackend;
use lockstep_backend_cuda::CudaBackend;

// The name here, the kind that configuration names, and the backend.
registry::devices! {
    cpu: Cpu, CpuBackend;
    cuda: Cuda, CudaBackend;
}

//! The devices by name: the one crate that knows concrete backends.
//!
//! Everything else is written against [`Backend`](lockstep_backend::Backend) and
//! runs through [`Registry::run`] on the device that this machine has. A device
//! more is a crate with its backend, a file like `cpu` here that implements
//! [`Device`] for it, and its line in the table below.

#![forbid(unsafe_code)]

mod cpu;
mod device;
mod finding;
mod footprint;
mod registry;
mod roofline;

pub use device::{Device, DeviceError, DeviceOptions};
pub use finding::Finding;
pub use footprint::{DeviceFootprint, device_memory};
pub use registry::OnDevice;
pub use roofline::{Arithmetic, Clock, Measured, Roofline};

use lockstep_backend_cpu::CpuBackend;

// The first that a machine has is the one that is used; all have the last.
registry::devices! {
    cpu: CpuBackend,
}

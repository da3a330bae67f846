//! Checkpoints: the files of a model folder, their packed form on disk, and the way from either to
//! a device.

pub(crate) mod adapter;
pub(crate) mod faults;
pub(crate) mod found;
pub(crate) mod loader;
pub(crate) mod packed;
mod progress;
pub(crate) mod source;

pub use adapter::{AdapterReader, ReadAdapter};
pub use faults::WeightCheck;
pub use progress::{LoadPhase, LoadProgress};
pub use source::{FileAccess, HostTensor, Safetensors};

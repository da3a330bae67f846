//! libcuda: the driver API, as far as this project's code calls it.

mod device;
mod error;
mod graph;
mod kernel;
mod memory;
mod module;
mod stream;

//! Lockstep's configuration. It is parsed once, resolved against the model and the machine into
//! one immutable [`EngineConfig`](lockstep_types::EngineConfig), hashed, and handed whole to
//! every process. No process derives a value again that stands there.

#![forbid(unsafe_code)]

pub mod args;

mod file;
mod file_args;
mod hardware;
mod hash;
mod memory;
mod resolve;

pub use args::{ServeArgs, check_short_options, with_algorithm_options, with_switch_values};
pub use file::{ConfigFile, ConfigFileError};
pub use file_args::with_config_file;
pub use hardware::Hardware;
pub use hash::hash;
pub use resolve::{Resolved, resolve};

#[cfg(test)]
mod testing;

//! Lockstep's configuration: parsed once, resolved against the model and the
//! machine into one immutable [`EngineConfig`], hashed, and handed whole to
//! every process. Nobody re-derives a value that stands here.

#![forbid(unsafe_code)]

pub mod args;

mod engine;
mod error;
mod file;
mod file_args;
mod format;
mod hardware;
mod hash;
mod memory;
mod model;
mod node;
pub mod reserve;
mod resolve;
mod speculation;

pub use args::ServeArgs;
pub use engine::{
    EngineConfig, KvConfig, LimitsConfig, NodeConfig, ParallelConfig, RequestLimits,
    ScheduleConfig, SchedulePolicy, ServerConfig, TimeoutConfig,
};
pub use error::ConfigError;
pub use file::{ConfigFile, ConfigFileError};
pub use file_args::with_config_file;
pub use format::{Dtype, KvCacheDtype, Quantization};
pub use hardware::Hardware;
pub use memory::{DraftMemory, kv_heads_per_rank};
pub use model::{Architecture, ModelConfig, ModelConfigError, RopeConfig, RopeScaling};
pub use reserve::ReserveConfig;
pub use resolve::{Resolved, resolve};
pub use speculation::{
    Algorithm, Algorithms, Capabilities, DraftKind, DraftKv, DraftModel, DraftShape, NgramConfig,
    SpeculationConfig, Verification,
};

#[cfg(test)]
mod testing;

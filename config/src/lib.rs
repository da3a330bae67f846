//! Lockstep's configuration: parsed once, resolved against the model and the
//! machine into one immutable [`EngineConfig`], hashed, and handed whole to
//! every process. Nobody re-derives a value that stands here.

#![forbid(unsafe_code)]

mod engine;
mod file;
mod hash;
mod model;
mod node;

pub use engine::{
    Dtype, EngineConfig, KvConfig, LimitsConfig, NodeConfig, ParallelConfig, RequestLimits,
    ScheduleConfig, SchedulePolicy, ServerConfig, SpeculationConfig, TimeoutConfig,
};
pub use file::{ConfigFile, ConfigFileError};
pub use model::{Architecture, ModelConfig, RopeConfig, RopeScaling};

//! The plain data that Lockstep's parts agree on, below wire and command line:
//! requests, sampling, steps, and the resolved configuration.
//!
//! Nothing here does I/O, and nothing here knows gRPC or flags: `proto` turns
//! requests and steps into messages, `config` makes the configuration.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod constraint;
pub mod drafter;
pub mod generation;
pub mod request;
pub mod reserve;
pub mod sampling;
pub mod step;

mod checkpoint;
mod connections;
mod constraint_work;
mod device;
mod engine;
mod error;
mod footprint;
mod format;
mod kv;
mod model;
mod names;
mod node;
mod speculation;
mod step_limits;
mod traces;
mod weight;

pub use adapter::{AdapterLimits, NamedAdapter};
pub use checkpoint::{
    BlockType, CheckpointFormat, Fp8Checkpoint, GgufCheckpoint, IntegerCheckpoint, IntegerForm,
    IntegerLayout, ModuleForm, Mxfp4Checkpoint,
};
pub use connections::ConnectionLimits;
pub use constraint_work::ConstraintWork;
pub use device::{CollectiveBackend, CollectiveConfig, DeviceConfig, DeviceKind, DeviceRoom};
pub use engine::{
    AnswersConfig, EngineConfig, KvConfig, LimitsConfig, NodeConfig, ParallelConfig, RequestLimits,
    ScheduleConfig, SchedulePolicy, ServerConfig, TimeoutConfig, TlsFiles, ToolStrictLevel,
    WebConfig, share_of_dp_rank,
};
pub use error::{AdapterError, ConfigError, ModelConfigError};
pub use footprint::{EngineShape, Footprint, MemoryUse, RankMemory};
pub use format::{Dtype, KvCacheDtype, LoadFormat, Quantization};
pub use kv::{KvGroup, KvPages, KvSpec, StateLimits, WindowNeed};
pub use model::{
    Activation, Architecture, AttentionNames, AttentionSpec, ExpertGate, ExpertGroups,
    ExpertTensors, ExpertsNames, ExpertsSpec, GatedDeltaInputs, GatedDeltaNames, GatedDeltaSpec,
    GatedMlpNames, GatedMlpSpec, GroupWorth, LatentAttentionNames, LatentAttentionSpec, LayerSpec,
    LongRope, Mamba2Names, Mamba2Spec, Mixer, Mlp, ModelConfig, Multipliers, NormKind, Norms,
    ParallelMlpNames, ParallelMlpSpec, PerLayerEmbeddings, PlainMlpNames, PlainMlpSpec, QkNorm,
    QueryScaling, RopeConfig, RopeScaling, RouterWeights, Routing, SharedExpert,
    ShortConvolutionNames, ShortConvolutionSpec, Values,
};
pub use names::{PerLayerNames, TensorNames};
pub use reserve::ReserveConfig;
pub use speculation::{
    Algorithm, Algorithms, Capabilities, DflashSpec, DraftKind, DraftKv, DraftModel, DraftShape,
    Eagle3Norms, NextnNames, NumberOption, OptionSpec, OptionValue, OptionValues,
    SpeculationConfig, SwitchOption, Verification,
};
pub use step_limits::StepLimits;
pub use traces::{TraceConfig, TraceContext};
pub use weight::{CodeTable, Codes, FactorType, GroupFormat, MatrixRole, Minimum, WeightFormat};

//! Transformer models, written once against the backend trait.
//!
//! | Module | Holds | Knows of |
//! |---|---|---|
//! | `split` | the part of a model on each rank | |
//! | `blocks` | attention, MLP, norm, linear: tensors, collectives and pass of each | `split` |
//! | `models` | models and draft heads, made of blocks | `blocks` |
//! | `checkpoint` | sources of tensors, such as [`Safetensors`], packed weights, the way to a device | `blocks` |
//! | `runner` | passes: [`Transformer`] runs the ragged extend, [`EagleHead`] and [`DflashModel`] draft from its hidden states | all |

#![deny(unsafe_code)]

mod blocks;
mod checkpoint;
mod error;
mod models;
mod runner;
mod split;

pub use blocks::{cache::ModelCache, rope_table};
pub use checkpoint::{
    AdapterReader, FileAccess, HostTensor, LoadPhase, LoadProgress, ReadAdapter, Safetensors,
    WeightCheck,
};
pub use error::ModelError;
pub use models::{
    CaptureSpec, Exit, Schedule, active_parameters, matrix_formats, parameters, shared_part,
};
pub use runner::{
    DflashModel, DraftPasses, DraftStaged, EagleHead, FeatureWindow, ForwardLimits, HiddenSource,
    LoadOptions, LogitBlock, LogitSink, Staged, Tables, Transformer, WeightOrigin, WholeTables,
    check_weights, rank_attentions, rank_experts, rank_memory, whole_head,
};
pub use split::{CollectiveKind, CollectiveStep, CountedRows, Heads, Place, Shard, Topology};

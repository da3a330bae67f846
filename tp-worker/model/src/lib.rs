//! Transformer models written once against the backend trait.
//!
//! [`Weights`] opens a model folder's safetensors, [`Shard`] says which part
//! of each matrix a rank holds, [`Transformer`] packs that part on a
//! [`lockstep_backend::Backend`] and runs the ragged extend.

#![deny(unsafe_code)]

mod capture;
mod error;
mod packed;
mod rope;
mod schedule;
mod shard;
mod transformer;
mod weights;

pub use capture::{CaptureSpec, Tables};
pub use error::ModelError;
pub use rope::rope_table;
pub use schedule::{CollectiveKind, CollectiveStep, Schedule};
pub use shard::Shard;
pub use transformer::{
    ForwardLimits, LoadPhase, LoadProgress, LogitBlock, Transformer, WeightOrigin,
};
pub use weights::{HostTensor, Weights};

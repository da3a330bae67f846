//! Transformer models written once against the backend trait.
//!
//! [`Weights`] opens a model folder's safetensors, [`Shard`] says which part
//! of each matrix a rank holds, [`Transformer`] packs that part on a
//! [`lockstep_backend::Backend`] and runs the ragged extend. [`EagleHead`]
//! drafts from the hidden states that a transformer's passes keep.

#![deny(unsafe_code)]

mod allocate;
mod blocks;
mod capture;
mod chains;
mod crossing;
mod eagle;
mod error;
mod feature_window;
mod footprint;
mod limits;
mod loader;
mod models;
mod packed;
mod progress;
mod rope;
mod schedule;
mod shard;
mod tables;
mod topology;
mod transformer;
mod weights;

pub use capture::CaptureSpec;
pub use chains::Chains;
pub use eagle::{EagleHead, HiddenSource};
pub use error::ModelError;
pub use feature_window::FeatureWindow;
pub use footprint::{rank_heads, rank_memory};
pub use limits::ForwardLimits;
pub use progress::{LoadPhase, LoadProgress};
pub use rope::rope_table;
pub use schedule::{CollectiveKind, CollectiveStep, CountedRows, Schedule};
pub use shard::Shard;
pub use tables::{Tables, WholeTables, whole_head};
pub use topology::{Place, Topology};
pub use transformer::{
    DraftStaged, LoadOptions, LogitBlock, LogitSink, Staged, Transformer, WeightOrigin,
};
pub use weights::{FileAccess, HostTensor, Weights};

//! Passes of a model: staged inputs, buffers, logits, crossing between DP ranks, and the
//! repetition of passes that a device has recorded.

mod check;
mod dflash;
mod draft_passes;
mod eagle;
mod feature_window;
mod footprint;
mod limits;
mod tables;
mod transformer;

pub use check::check_weights;
pub use dflash::DflashModel;
pub use draft_passes::DraftPasses;
pub use eagle::{EagleHead, HiddenSource};
pub use feature_window::FeatureWindow;
pub use footprint::{rank_attentions, rank_experts, rank_memory};
pub use limits::ForwardLimits;
pub use tables::{Tables, WholeTables, whole_head};
pub use transformer::{
    DraftStaged, LoadOptions, LogitBlock, LogitSink, Staged, Transformer, WeightOrigin,
};

//! Whole models, made of blocks: their tensors, the collectives of a pass, and the values that
//! leave it.
//!
//! One decoder serves all families, because [`lockstep_types::ModelConfig`] describes the blocks
//! of each layer and the names of the tensors. The table of families is in the code that reads
//! `config.json`.

pub(crate) mod adapters;
mod capture;
pub(crate) mod decoder;
pub(crate) mod dflash;
pub(crate) mod eagle;
mod parameters;
mod schedule;

pub use capture::{CaptureSpec, Exit};
pub use parameters::{active_parameters, matrix_formats, parameters, shared_part};
pub use schedule::Schedule;

//! Whole models, made of blocks: their blocks, the names of their tensors, the collectives of
//! a pass, and the states that drafters read.

mod capture;
pub(crate) mod decoder;
pub(crate) mod eagle;
mod parameters;
mod schedule;

pub use capture::CaptureSpec;
pub use parameters::{parameters, shared_part};
pub use schedule::Schedule;

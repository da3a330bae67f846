//! The tensor-parallel worker process: one device, one shard.
//!
//! [`worker`] computes: plans in, results out, no clock and no choice of its
//! own. Around it, [`process`] attaches to the scheduler's stream on a thread
//! that never computes and hands plans over. [`conformance`] is for those who
//! write speculative algorithms.

#![forbid(unsafe_code)]

pub mod conformance;
mod error;
mod process;
pub mod worker;

pub use error::RunError;
pub use process::run;

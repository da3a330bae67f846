//! The tensor-parallel worker process: one device, one shard.
//!
//! [`worker`] computes: it takes plans and gives results, and has no clock and no choice of its
//! own. [`process`] attaches to the scheduler's stream on a thread that never computes, and
//! hands plans to the worker. [`conformance`] is for authors of speculative algorithms.

#![forbid(unsafe_code)]

pub mod conformance;
mod error;
mod process;
pub mod worker;

pub use error::RunError;
pub use process::run;

//! The scheduler process: a thin shell around the pure planner.
//!
//! It serves three gRPC seams and owns one event loop. [`engine`] is that loop
//! and the only place where a clock is read that changes a batch; [`frontend`]
//! is the seam to the tokenizer-managers, [`workers`] the one to the workers,
//! [`sglang`] the wire-compatible public service for SGLang's gateway.

#![forbid(unsafe_code)]

mod admissible;
mod bearer;
mod clock;
mod command;
mod engine;
mod error;
mod frontend;
mod group;
mod health;
mod kv_events;
mod load;
mod serve;
mod sglang;
mod sinks;
mod workers;

pub use admissible::admissible;
pub use error::RunError;
pub use serve::run;

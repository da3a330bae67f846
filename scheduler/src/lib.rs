//! The scheduler process: a thin shell around the pure planner.
//!
//! It serves three gRPC services and owns one event loop. [`engine`] is that loop, and the only
//! place with a clock that changes a batch. [`frontend`] is the service for the
//! tokenizer-managers, [`gateway`] for the workers, and [`sglang`] the wire-compatible public
//! service for SGLang's gateway. All services talk to the loop through [`inbox`].

#![forbid(unsafe_code)]

mod adapters;
mod admissible;
mod bearer;
mod clock;
mod depth_range_file;
mod depth_stats;
mod engine;
mod error;
mod figures;
mod frontend;
mod gateway;
mod health;
mod hello;
mod inbox;
mod kv_events;
mod load;
mod net;
mod ports;
mod serve;
mod sglang;
mod sinks;
mod traces;
mod worker_group;
mod worker_link;

pub use admissible::admissible;
pub use error::RunError;
pub use serve::run;

//! The tokenizer-manager process: HTTP and gRPC front of the engine.
//!
//! ```text
//! chat, completions, /generate, gRPC ──▶ GenerateSpec ──▶ Submission ──▶ SchedulerClient (one stream)
//!                                                             │
//!                               SSE, JSON, gRPC ◀── Events ◀── Generation (one per choice)
//! ```
//!
//! A surface turns its parsed request into a [`submission::GenerateSpec`]. Checks,
//! tokens and limits are the same for all surfaces. A [`generation::Generation`] turns
//! the scheduler's tokens into events, which each surface maps to its form. Dropping it
//! aborts its request. So a client that leaves, in whatever way, costs nothing from then on.

#![forbid(unsafe_code)]

pub mod app;
pub mod auth;
pub mod constraints;
pub mod error;
pub mod gate;
pub mod generation;
pub mod grpc;
pub mod http;
pub mod metrics;
mod ports;
mod request_id;
mod request_stats;
mod request_trace;
pub mod run;
pub mod scheduler_client;
pub mod submission;
pub mod text;

pub use ports::Ports;
pub use run::{Listeners, RunError, run, serve_on};

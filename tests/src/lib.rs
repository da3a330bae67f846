//! Cross-process, golden, conformance and fault tests, with helpers to start servers,
//! talk to them, and harm them.

#![forbid(unsafe_code)]

pub mod body;
pub mod flood;
pub mod grpc;
pub mod h2;
pub mod http;
pub mod innocent;
pub mod metrics;
pub mod mutated;
pub mod ports;
pub mod processes;
pub mod raw;
pub mod row;
pub mod schemas;
pub mod server;
pub mod sockets;
pub mod sse;
pub mod storm;
pub mod tls;
pub mod turns;
pub mod turns_policy;
pub mod wait;

/// The model of servers under test.
pub const MODEL: &str = "lockstep-demo-7m";

//! Servers of real processes, from outside: what clients get, what operators
//! see, and what happens when a process dies, hangs or cannot start.

mod adaptive;
mod agreement;
mod bad_input;
mod browsers;
mod chat;
mod commands;
mod completions;
mod corpora;
mod cuda;
mod data_parallel;
mod drain;
mod faults;
mod fronts;
mod grpc;
mod hang;
mod hub;
mod keys;
mod limits;
mod load;
mod lost_ranks;
mod metrics;
mod model_folders;
mod native;
mod nodes;
mod operators;
mod ranks;
mod sglang;
mod start;
mod surface;
mod templates;
mod tls;
mod traces;
mod weight_cache;
mod weights;

use std::sync::Arc;

use lockstep_tests::server::{Options, Server};

/// The program under test with the options that most tests use.
fn options() -> Options {
    Options::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
}

/// The server of tests that change nothing.
async fn shared() -> Arc<Server> {
    Server::shared(&options()).await
}

//! Servers of real processes, seen from outside: the answers for clients, the signs for
//! operators, and the effects of a process that dies, hangs or cannot start.

mod adaptive;
mod agreement;
mod apis;
mod bad_input;
mod browsers;
mod chat;
mod commands;
mod completions;
mod constraints;
mod corpora;
mod cuda;
mod data_parallel;
mod drain;
mod experts;
mod faults;
mod first_steps;
mod fronts;
mod grpc;
mod hang;
mod held_calls;
mod hub;
mod keys;
mod limits;
mod load;
mod lora;
mod lost_ranks;
mod metrics;
mod model_folders;
mod native;
mod nodes;
mod operators;
mod random_schemas;
mod ranks;
mod sglang;
mod start;
mod surface;
mod templates;
mod tls;
mod traces;
mod weight_cache;
mod weights;
mod wrong_folders;

use std::sync::Arc;

use lockstep_tests::server::{Options, Server};

/// The options that most tests use, with the program under test.
fn options() -> Options {
    Options::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
}

/// The server that tests share if they change nothing.
async fn shared() -> Arc<Server> {
    Server::shared(&options()).await
}

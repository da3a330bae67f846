//! Hostile clients, closed pipes and hanging processes, and the harm that they must not
//! do. Each file tries one attack at a size that runs everywhere. The tests of full
//! size are ignored (`cargo test --release -p lockstep-tests --test edges -- --ignored
//! --test-threads 1 --nocapture`). Each of them prints the effect on the server, most
//! as a row of a table. `LOCKSTEP_EDGES_TABLE=FILE` collects the rows.

mod bodies;
mod containers;
mod end;
mod fairness;
mod floods;
mod folders;
mod full;
mod given_back;
mod hang;
mod hour;
mod large;
mod logprobs;
mod logs;
mod mutated;
mod nodes;
mod resets;
mod silent;
mod slow;
mod stalled;
mod templates;
mod texts;
mod unread;

use lockstep_tests::server::Options;

/// Address space of each process of a server in KiB.
const ADDRESS_SPACE: u64 = 4 << 20;

/// Environment variable with another program to test, such as an older version.
const PROGRAM: &str = "LOCKSTEP_EDGES_PROGRAM";

/// The options that most tests use, with the program under test, in little memory.
fn options() -> Options {
    let under_test = || env!("CARGO_BIN_EXE_lockstep-under-test").into();
    let program = std::env::var_os(PROGRAM).unwrap_or_else(under_test);
    Options::new(program).limit("-v", ADDRESS_SPACE)
}

/// Options for a single rank, for tests of the ports alone.
fn one_rank() -> Options {
    options().set("--tp-size", "1")
}

//! What strangers, closed pipes and hanging processes may not do to a server,
//! one file per thing they do: at a size that runs everywhere, and ignored at
//! full size (`cargo test --release -p lockstep-tests --test edges -- --ignored
//! --test-threads 1 --nocapture`), where each says what it did to the server, most
//! in a row of a table. `LOCKSTEP_EDGES_TABLE=FILE` gathers the rows.

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

/// KiB of address space that each process of a server may have.
const ADDRESS_SPACE: u64 = 4 << 20;

/// Another program to test in place of this one, such as an older one.
const PROGRAM: &str = "LOCKSTEP_EDGES_PROGRAM";

/// The program under test with the options that most tests use, in little memory.
fn options() -> Options {
    let under_test = || env!("CARGO_BIN_EXE_lockstep-under-test").into();
    let program = std::env::var_os(PROGRAM).unwrap_or_else(under_test);
    Options::new(program).limit("-v", ADDRESS_SPACE)
}

/// The same on one rank, where what happens behind the ports does not matter.
fn one_rank() -> Options {
    options().set("--tp-size", "1")
}

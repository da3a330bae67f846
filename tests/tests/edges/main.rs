//! What strangers, closed pipes and hanging processes may not do to a server,
//! one file per thing they do: at a size that runs everywhere, and ignored at
//! full size (`cargo test --release -p lockstep-tests --test edges -- --ignored`).

mod bodies;
mod containers;
mod end;
mod fairness;
mod floods;
mod folders;
mod given_back;
mod hang;
mod large;
mod logprobs;
mod logs;
mod mutated;
mod nodes;
mod resets;
mod silent;
mod slow;
mod templates;
mod texts;
mod unread;

use lockstep_tests::server::Options;

/// The program under test with the options that most tests use.
fn options() -> Options {
    Options::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
}

/// The same on one rank, where what happens behind the ports does not matter.
fn one_rank() -> Options {
    options().set("--tp-size", "1")
}

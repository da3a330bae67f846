//! The `lockstep` program with two more algorithms and one more policy.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use lockstep_devices::Registry;
use lockstep_example_block_drafter::{Block, Phrases, Streaks};

fn main() -> ExitCode {
    let registry = Registry::builtin()
        .with(Block)
        .with(Phrases::default())
        .with_policy(Streaks);
    lockstep::main_with(&registry)
}

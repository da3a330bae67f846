//! The `lockstep` program with two algorithms more.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use lockstep_devices::Registry;
use lockstep_example_block_drafter::{Block, Phrases};

fn main() -> ExitCode {
    lockstep::main_with(&Registry::builtin().with(Block).with(Phrases::default()))
}

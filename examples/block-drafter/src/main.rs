//! The `lockstep` program with one algorithm more.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use lockstep_devices::Registry;
use lockstep_example_block_drafter::Block;

fn main() -> ExitCode {
    lockstep::main_with(&Registry::builtin().with(Block))
}

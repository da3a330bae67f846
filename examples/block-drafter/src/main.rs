//! The `lockstep` program with one algorithm more.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use lockstep_example_block_drafter::Block;
use lockstep_speculation::Registry;

fn main() -> ExitCode {
    lockstep::main_with(&Registry::builtin().with(Block))
}

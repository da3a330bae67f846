//! The `lockstep` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep::main()
}

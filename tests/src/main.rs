//! The program under test.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    lockstep::main()
}

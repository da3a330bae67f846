//! What strangers, closed pipes and hanging processes may not do to a server.

mod fairness;
mod logs;

use lockstep_tests::server::Options;

/// The program under test with the options that most tests use.
fn options() -> Options {
    Options::new(env!("CARGO_BIN_EXE_lockstep-under-test"))
}

//! The program under test: Lockstep with the tests' own policy, and with ranks that can
//! be made to fail.

#![forbid(unsafe_code)]

use lockstep_devices::Registry;

fn main() -> std::process::ExitCode {
    lockstep_tp_worker::worker::faults::enable();
    let registry = Registry::builtin().with_policy(lockstep_tests::turns_policy::turns());
    lockstep::main_with(&registry)
}

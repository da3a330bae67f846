//! The program under test: Lockstep, with a policy of the tests.

#![forbid(unsafe_code)]

use lockstep_devices::Registry;

fn main() -> std::process::ExitCode {
    let registry = Registry::builtin().with_policy(lockstep_tests::turns_policy::turns());
    lockstep::main_with(&registry)
}

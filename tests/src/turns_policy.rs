//! A policy that makes one process under test decide differently from its peers.

use lockstep_tp_worker::conformance::Turns;

/// Environment variable with the step in which a process decides differently.
pub const ASTRAY: &str = "TEST_ASTRAY_IN_STEP";

/// Returns a policy that chooses another depth in every step. With [`ASTRAY`] in its
/// environment, a process decides differently in that step.
pub fn turns() -> Turns {
    let astray = std::env::var(ASTRAY).ok();
    Turns {
        astray: astray.and_then(|step| step.parse().ok()),
    }
}

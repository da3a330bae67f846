//! What makes a process under test decide differently than its peers.

use lockstep_tp_worker::conformance::Turns;

/// Names the step in which a process decides differently.
pub const ASTRAY: &str = "TEST_ASTRAY_IN_STEP";

/// Another depth in every step; on a process whose environment has [`ASTRAY`], a
/// different one in that step.
pub fn turns() -> Turns {
    let astray = std::env::var(ASTRAY).ok();
    Turns {
        astray: astray.and_then(|step| step.parse().ok()),
    }
}

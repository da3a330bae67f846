//! Recurrent states in random configurations.

use super::{windows::with_window_pages, *};

/// Generates no states, or one more than those beyond the slots' own.
pub fn states() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0u32), 2 => 1u32..6, 1 => 6u32..40]
}

/// Turns the `states` and the `window_pages` of a generated configuration into numbers that
/// suffice, see [`states`].
pub fn fitted(config: &PlannerConfig) -> PlannerConfig {
    let states = match config.states {
        0 => 0,
        more => config.max_running_requests + more - 1,
    };
    PlannerConfig {
        states,
        ..with_window_pages(config)
    }
}

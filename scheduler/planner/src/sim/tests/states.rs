//! Recurrent states in random configurations.

use super::{
    speculation::{ALL, Case, drive, run_cases},
    windows::with_window_pages,
    *,
};
use crate::batch::Grant;

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

/// Every text is right wherever it goes on from a state: turns, branches, drafts with any
/// acceptance, retraction and eviction. Most prefixes whose pages are cached have a state, if the
/// pool has room.
#[test]
fn texts_go_on_from_cached_states() {
    let served = |states: u32| {
        let with_states = |case: &Case| {
            let config = PlannerConfig {
                radix_cache: true,
                windows: Vec::new(),
                states,
                ..case.config.clone()
            };
            let case = Case {
                config,
                ..case.clone()
            };
            drive(&case, ALL, Grant::Exact)
        };
        run_cases(200, with_states).expect("no fault")
    };
    let (none, few, many) = (served(0), served(3), served(60));
    assert_eq!(none.cached_state_tokens, none.cached_full_tokens);
    assert!(few.cached_tokens > 1_000, "{few:?}");
    assert!(many.cached_tokens > few.cached_tokens, "{many:?}");
    let (with, without) = (many.cached_tokens, none.cached_tokens);
    assert!(2 * with > without, "{with} of {without}");
    assert!(many.retractions > 10, "{many:?}");
}

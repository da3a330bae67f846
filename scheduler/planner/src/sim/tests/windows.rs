//! Groups of layers with sliding windows in random configurations.

use super::*;

/// Generates the windows of up to three groups of layers, of one position up to all.
pub fn windows() -> impl Strategy<Value = Vec<u32>> {
    let window = prop_oneof![3 => 1u32..8, 3 => 8u32..40, 1 => Just(CONTEXT)];
    prop_oneof![1 => Just(Vec::new()), 2 => prop::collection::vec(window, 1..4)]
}

/// Gives groups with windows the least pages, and the `window_pages` of a generated
/// configuration on top.
pub fn with_window_pages(config: &PlannerConfig) -> PlannerConfig {
    let pages = config.least_window_pages() + config.window_pages;
    PlannerConfig {
        window_pages: pages.min(config.num_pages),
        ..config.clone()
    }
}

//! Tests of copies that are refused.

use super::*;

/// Two slots and one state more, and copies in outputs at multiples of 64.
fn states() -> States {
    States::new(&PlannerConfig {
        max_running_requests: 2,
        states: 3,
        page_size: 4,
        state_interval: 64,
        num_pages: 99,
        ..PlannerConfig::default()
    })
}

/// Returns what a row with drafts asks for whose slot stands right before 64.
fn decode(states: &mut States, held: &mut HeldStates) -> Vec<StateKeep> {
    let row = RowSpan {
        before: 62,
        after: 66,
        decodes: true,
        longest: 1000,
    };
    let mut list = Vec::new();
    states.plan_keeps(held, row, &mut list);
    list
}

/// Rows with drafts ask for the same copy again and again. It counts once against the cached
/// states that save more, and so does that of another request.
#[test]
fn a_copy_that_is_refused_again_ages_no_state() {
    let mut states = states();
    let mut cached = HeldStates::default();
    states.enter(&mut cached, &[], 0, 101);
    let prompt = RowSpan {
        before: 0,
        after: 101,
        decodes: false,
        longest: 102,
    };
    let mut keeps = Vec::new();
    states.plan_keeps(&mut cached, prompt, &mut keeps);
    assert_eq!(keeps.len(), 1);
    states.pass(&mut cached, 101);
    let blocks: Vec<u32> = (1..=25).collect();
    states.cache(&mut cached, &blocks, false); // 100
    states.leave(&mut cached);

    let [mut one, mut other] = [HeldStates::default(), HeldStates::default()];
    states.enter(&mut one, &[], 0, 1);
    states.enter(&mut other, &[], 0, 1);
    for _ in 0..5 {
        assert_eq!(decode(&mut states, &mut one), []); // 64
    }
    assert_eq!(states.usable(&blocks), 25);
    assert_eq!(decode(&mut states, &mut other).len(), 1); // 64 + 64
    assert_eq!(states.usable(&blocks), 0);
}

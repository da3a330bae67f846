use super::*;
use crate::testing::{Driver, accepted, config, exact, slot};

/// A step takes a millisecond for each token of the pass, and ten more.
fn profile() -> Vec<Seen> {
    let grid = [1, 2, 4, 8]
        .into_iter()
        .flat_map(|rows| [0, 1, 7].map(|depth| (rows, depth)));
    let seen = grid.map(|(decodes, depth)| Seen {
        depth,
        decodes,
        tokens: decodes * (depth + 1),
        verify_us: 10_000 + 1_000 * decodes * (depth + 1),
        ..Seen::default()
    });
    seen.collect()
}

fn driver(initial_depth: u32, config: AdaptiveConfig) -> Driver {
    let config = AdaptiveConfig {
        initial_depth,
        ..config
    };
    Driver::new("throughput_aware", &config, &profile())
}

fn ladder(depths: &[u32]) -> AdaptiveConfig {
    AdaptiveConfig {
        slots: vec![slot(1, depths)],
        ..config()
    }
}

#[test]
fn windows_must_be_full_and_the_interval_over_before_it_decides() {
    let mut driver = driver(3, ladder(&[1, 3, 5, 7]));
    let good = accepted(3, &[3]);
    assert_eq!(driver.show_times(19, &good), 3);
    assert_eq!(
        driver.show(&good),
        7,
        "with the twentieth batch, which is a fifth one too"
    );
    let bad = accepted(7, &[0]);
    // Windows have 20 batches: after 24 batches those of positions 3 to 6 are full.
    assert_eq!(driver.show_times(19, &bad), 7);
    assert_eq!(driver.show(&bad), 1);
}

#[test]
fn tokens_expected_are_the_sum_of_survivals_and_positions_not_seen_go_on_geometrically() {
    let mut windows = Windows::new(20);
    assert_eq!(windows.expected_tokens(1), None, "before anything was seen");
    let thousandths = |value: Option<u64>| value.map(|value| (value * 1000 + ONE / 2) / ONE);
    let mut hazards = [500; POSITIONS];
    hazards[0] = 800;
    windows.push(&exact(1, 1000, &hazards));
    assert_eq!(
        thousandths(windows.expected_tokens(0)),
        None,
        "depth 0 has no score"
    );
    assert_eq!(thousandths(windows.expected_tokens(1)), Some(1800));
    assert_eq!(
        thousandths(windows.expected_tokens(2)),
        Some(2600),
        "one known goes on flat"
    );
    windows.push(&exact(2, 1000, &hazards));
    // The shares are 0.8 and 0.4, and go on with a ratio of 0.5.
    assert_eq!(thousandths(windows.expected_tokens(2)), Some(2200));
    assert_eq!(thousandths(windows.expected_tokens(4)), Some(2500));
    windows.clear_from(1);
    assert_eq!(thousandths(windows.expected_tokens(2)), Some(2600));
    let mut none = Windows::new(20);
    none.push(&exact(2, 1000, &[0; POSITIONS]));
    assert_eq!(thousandths(none.expected_tokens(7)), Some(1000));
}

#[test]
fn a_window_is_the_mean_of_the_last_twenty_batches() {
    let mut windows = Windows::new(20);
    for _ in 0..30 {
        windows.push(&accepted(1, &[1, 1]));
    }
    assert_eq!(windows.rate(0), Some(ONE));
    for _ in 0..5 {
        windows.push(&accepted(1, &[0, 0]));
    }
    assert_eq!(windows.rate(0), Some(ONE * 3 / 4));
}

#[test]
fn another_depth_must_be_better_by_the_hysteresis() {
    // Eight rows take 26 ms at depth 1 and 42 at 3. With `k` of 8 accepted, and
    // deeper positions as good, 3 is better by (8 + 3k) / (8 + k) · 26 / 42.
    for (k, switch_hysteresis, expected) in [
        (5, 100_000, 1),
        (6, 100_000, 3),
        (5, 0, 3),
        (3, 0, 1),
        (8, 1_000_000, 1),
    ] {
        let config = AdaptiveConfig {
            switch_hysteresis,
            ..ladder(&[1, 3])
        };
        let rows = [0, 1, 2, 3, 4, 5, 6, 7].map(|row| u32::from(row < k));
        let told = driver(1, config).show_times(20, &accepted(1, &rows));
        assert_eq!(told, expected, "{k} of 8 with {switch_hysteresis}");
    }
}

#[test]
fn deeper_windows_are_forgotten_on_the_way_down() {
    let mut driver = driver(7, ladder(&[1, 3, 5, 7]));
    assert_eq!(driver.show_times(20, &accepted(7, &[0])), 1);
    // Position 0 keeps its window, whose mean is now 0.25. The others would hold zeros;
    // cleared, they go on as flat as position 0.
    let good = accepted(1, &[1]);
    assert_eq!(driver.show_times(4, &good), 1);
    assert_eq!(driver.show(&good), 7);
}

#[test]
fn a_slot_without_the_present_depth_is_obeyed_at_once() {
    let slots = vec![slot(1, &[1, 3, 5, 7]), slot(4, &[1, 3, 5])];
    let config = AdaptiveConfig { slots, ..config() };
    let mut driver = driver(7, config);
    assert_eq!(driver.show(&accepted(7, &[0])), 7);
    assert_eq!(
        driver.show(&accepted(7, &[0; 4])),
        1,
        "the best by what is known"
    );
    let mut cold = Driver::new(
        "throughput_aware",
        &config_of(7, &[slot(1, &[1, 3, 5])]),
        &[],
    );
    assert_eq!(
        cold.show(&Seen::default()),
        3,
        "the middle one where nothing is known"
    );
}

fn config_of(initial_depth: u32, slots: &[crate::BatchSlot]) -> AdaptiveConfig {
    AdaptiveConfig {
        initial_depth,
        slots: slots.to_vec(),
        ..config()
    }
}

#[test]
fn empty_batches_and_an_empty_profile_decide_nothing() {
    let mut driver = driver(3, ladder(&[1, 3, 5, 7]));
    assert_eq!(
        driver.show_times(
            100,
            &Seen {
                depth: 3,
                ..Seen::default()
            }
        ),
        3
    );
    let mut blind = Driver::new("throughput_aware", &ladder(&[1, 3, 5, 7]), &[]);
    assert_eq!(blind.show_times(100, &accepted(3, &[3])), 3);
}

#[test]
fn depth_0_is_refused() {
    assert_eq!(ThroughputAwares.check(&ladder(&[1, 3])), Ok(()));
    let refused = ThroughputAwares.check(&ladder(&[0, 1, 3]));
    assert!(refused.unwrap_err().contains("depth 0"));
}

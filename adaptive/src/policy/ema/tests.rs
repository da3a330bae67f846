use super::*;
use crate::{
    Seen,
    testing::{Driver, accepted, config, slot},
};

/// Returns a configuration in which the newest batch has weight one, with no warm-up and a
/// decision at every batch.
fn at_once(depths: &[u32]) -> AdaptiveConfig {
    AdaptiveConfig {
        slots: vec![slot(1, depths)],
        ema_alpha: 1_000_000,
        update_interval: 1,
        warmup_batches: 0,
        ..config()
    }
}

fn from(initial_depth: u32, config: AdaptiveConfig) -> Driver {
    let config = AdaptiveConfig {
        initial_depth,
        ..config
    };
    Driver::new("ema", &config, &[])
}

/// Returns a batch of four that accepts so many quarters of a draft per request.
fn quarters(depth: u32, quarters: u32) -> Seen {
    let rows = [0, 1, 2, 3].map(|row| (quarters + row) / 4);
    let seen = accepted(depth, &rows);
    assert_eq!(seen.drafts_accepted(), u64::from(quarters));
    seen
}

#[test]
fn nothing_is_decided_during_the_warm_up_and_then_at_every_interval() {
    let slots = vec![slot(1, &[1, 3, 5, 7])];
    let mut driver = from(3, AdaptiveConfig { slots, ..config() });
    let bad = quarters(3, 0);
    // With nothing accepted the average falls under 0.25 at the tenth batch.
    assert_eq!(driver.show_times(14, &bad), 3);
    assert_eq!(driver.show(&bad), 1);
    let good = quarters(1, 4);
    // The average 0.07 + 0.2 · … is above 0.5 at the third batch, and the decision waits for
    // the fifth.
    assert_eq!(driver.show_times(4, &good), 1);
    assert_eq!(driver.show(&good), 3);
}

#[test]
fn the_average_weighs_the_newest_batch_by_alpha() {
    let slots = vec![slot(1, &[1, 3])];
    let mut driver = from(
        1,
        AdaptiveConfig {
            slots,
            warmup_batches: 0,
            update_interval: 1,
            ..config()
        },
    );
    // From 0 with α = 0.2 and x = 1: 0.2, 0.36, 0.488, 0.5904.
    let good = quarters(1, 4);
    assert_eq!(driver.show_times(3, &good), 1);
    assert_eq!(driver.show(&good), 3);
}

#[test]
fn thresholds_lie_half_a_draft_below_a_depth_and_hysteresis_moves_them() {
    let table = [
        // present depth, accepted quarters, up, down, expected
        (3, 10, 0, -250_000, 3),
        (3, 11, 0, -250_000, 5),
        (3, 11, 250_000, -250_000, 3),
        (3, 12, 250_000, -250_000, 5),
        (5, 10, 0, -250_000, 5),
        (5, 9, 0, -250_000, 3),
        (5, 10, 0, 0, 3),
        (1, 2, 0, 0, 0),
        (1, 3, 0, 0, 3),
        (1, 2, 0, -250_000, 1),
        (1, 1, 0, -250_000, 0),
    ];
    for (depth, seen, up_hysteresis, down_hysteresis, expected) in table {
        let mut config = at_once(&[0, 1, 3, 5, 7]);
        config.slots[0].up_hysteresis = up_hysteresis;
        config.slots[0].down_hysteresis = down_hysteresis;
        let told = from(depth, config).show(&quarters(depth, seen));
        assert_eq!(
            told, expected,
            "{seen}/4 accepted at depth {depth}, {up_hysteresis} {down_hysteresis}"
        );
    }
}

#[test]
fn several_rungs_fall_and_rise_in_one_decision() {
    assert_eq!(from(7, at_once(&[0, 1, 3, 5, 7])).show(&quarters(7, 0)), 0);
    assert_eq!(from(7, at_once(&[1, 3, 5, 7])).show(&quarters(7, 0)), 1);
    assert_eq!(from(7, at_once(&[1, 3, 5, 7])).show(&quarters(7, 6)), 3);
    // Accepting seven drafts at depth 1 is impossible, so the ladder is close.
    assert_eq!(from(3, at_once(&[1, 2, 3])).show(&quarters(3, 4)), 2);
    let mut config = at_once(&[1, 2, 3]);
    config.slots[0].up_hysteresis = -2_000_000;
    assert_eq!(from(1, config).show(&quarters(1, 4)), 3);
}

#[test]
fn depth_0_is_left_for_a_probe_and_keeps_its_average() {
    let mut driver = from(1, at_once(&[0, 1, 3]));
    assert_eq!(driver.show(&quarters(1, 0)), 0);
    let nothing = quarters(0, 0);
    assert_eq!(driver.show(&nothing), 1, "a probe");
    assert_eq!(
        driver.show(&nothing),
        0,
        "a late result at depth 0 shows nothing new"
    );
    assert_eq!(driver.show(&nothing), 1);
    assert_eq!(driver.show(&quarters(1, 4)), 3);
}

#[test]
fn a_slot_that_begins_at_0_probes_from_a_neutral_average() {
    let mut driver = from(0, at_once(&[0, 3, 5]));
    assert_eq!(driver.show(&quarters(0, 0)), 3);
    // The average is now 2: neither above 2.5 nor at most 0.25.
    assert_eq!(driver.show(&quarters(0, 0)), 3);
    assert_eq!(
        from(0, at_once(&[0])).show(&quarters(0, 0)),
        0,
        "nothing to probe"
    );
}

#[test]
fn depths_beyond_the_ceiling_are_left_but_may_be_risen_to() {
    let mut config = at_once(&[1, 3, 5, 7]);
    config.slots[0].ceiling_coeff = 1_200_000;
    // 2.75 · 1.2 = 3.3, so at most 4.
    assert_eq!(from(5, config.clone()).show(&quarters(5, 11)), 3);
    // The same average rises from 3 to 5: the ceiling blocks no rise.
    assert_eq!(from(3, config.clone()).show(&quarters(3, 11)), 5);
    // ceil(max(1, 0)) = 1.
    assert_eq!(from(7, config).show(&quarters(7, 0)), 1);
}

#[test]
fn an_initial_depth_that_is_no_candidate_becomes_the_middle_one() {
    let nothing = Seen::default();
    for (initial, depths, expected) in [
        (4, &[1, 3, 5, 7][..], 5),
        (4, &[1, 3, 5], 3),
        (3, &[1, 3, 5], 3),
        (2, &[0], 0),
    ] {
        let slots = vec![slot(1, depths)];
        let told = from(initial, AdaptiveConfig { slots, ..config() }).show(&nothing);
        assert_eq!(told, expected, "{initial} among {depths:?}");
    }
}

#[test]
fn empty_batches_are_no_batches() {
    let mut driver = from(
        3,
        AdaptiveConfig {
            slots: vec![slot(1, &[1, 3])],
            ..config()
        },
    );
    let bad = quarters(3, 0);
    for _ in 0..14 {
        driver.show(&bad);
        assert_eq!(
            driver.show_times(
                20,
                &Seen {
                    depth: 3,
                    ..Seen::default()
                }
            ),
            3
        );
    }
    assert_eq!(driver.show(&bad), 1);
}

#[test]
fn every_slot_has_a_state_of_its_own() {
    let slots = vec![slot(1, &[1, 3]), slot(4, &[0, 1])];
    let mut driver = from(
        3,
        AdaptiveConfig {
            slots,
            ..at_once(&[])
        },
    );
    assert_eq!(driver.show(&accepted(3, &[3])), 3);
    assert_eq!(
        driver.show(&accepted(3, &[0, 0, 0, 0])),
        0,
        "3 is no candidate of the larger slot"
    );
    assert_eq!(
        driver.show(&accepted(0, &[0])),
        3,
        "the smaller one stayed where it was"
    );
    assert_eq!(
        driver.show(&accepted(0, &[0; 9])),
        1,
        "the larger one probes"
    );
}

#[test]
fn without_a_file_its_slots_are_those_of_sglang_that_can_be_run() {
    let depths = |most| Emas.default_slots(most).into_iter().map(|slot| slot.depths);
    let all = [vec![1, 3, 5, 7], vec![0, 1, 3], vec![0, 1], vec![0]];
    assert!(depths(7).eq(all));
    assert!(depths(4).eq([vec![1, 3], vec![0, 1, 3], vec![0, 1], vec![0]]));
    assert!(Emas.obeys("ceiling_coeff") && !Emas.obeys("window_size"));
}

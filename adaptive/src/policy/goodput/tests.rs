use super::*;
use crate::{
    Loads, LongPrompts, Seen,
    testing::{Driver, accepted, config, exact},
};

mod ranks;

/// Returns a fixed-point number in thousandths.
fn thousandths(value: i64) -> i64 {
    (value * 1000 + ONE / 2) / ONE
}

fn rising(first: u32, step: u32) -> [u32; POSITIONS] {
    std::array::from_fn(|at| (first + step * at as u32).min(980))
}

fn after(times: usize, seen: &Seen, hazards: &mut Hazards) {
    (0..times).for_each(|_| hazards.observe(seen));
}

#[test]
fn hazards_are_learnt_by_position() {
    let truth = rising(500, 50);
    let mut hazards = Hazards::new();
    after(200, &exact(7, 40_000, &truth), &mut hazards);
    for (at, truth) in truth.iter().enumerate().take(7) {
        let told = thousandths(hazards.hazard(at));
        assert!(
            (told - i64::from(*truth)).abs() <= 15,
            "{at}: {told} for {truth}"
        );
    }
    // The expected value is 1 + 0.5 + 0.5 · 0.55 + 0.5 · 0.55 · 0.6.
    let told = thousandths(hazards.tokens(false)[3]);
    assert!((told - 1940).abs() <= 25, "{told}");
}

#[test]
fn positions_not_proposed_follow_the_level_with_the_shape_they_had() {
    let mut hazards = Hazards::new();
    after(200, &exact(7, 40_000, &rising(600, 40)), &mut hazards);
    let before = [0, 3, 6].map(|at| thousandths(hazards.hazard(at)));
    // Only the first position is seen from now on, and it falls: logit 0.41 to -0.85.
    after(60, &exact(1, 40_000, &rising(300, 0)), &mut hazards);
    let now = [0, 3, 6].map(|at| thousandths(hazards.hazard(at)));
    assert!((now[0] - 300).abs() <= 10, "{now:?}");
    // 0.72 and 0.84 are logits 0.94 and 1.66; 1.25 less is 0.42 and 0.60.
    assert!(
        (now[1] - 423).abs() <= 30 && (now[2] - 600).abs() <= 30,
        "{before:?} {now:?}"
    );
}

#[test]
fn positions_never_seen_go_on_as_the_last_known_one() {
    let mut hazards = Hazards::new();
    after(60, &exact(2, 40_000, &rising(600, 100)), &mut hazards);
    let told = [1, 2, 15].map(|at| thousandths(hazards.hazard(at)));
    assert!(
        (told[0] - 700).abs() <= 15 && told[1] == told[0] && told[2] == told[0],
        "{told:?}"
    );
}

#[test]
fn rows_that_propose_nothing_are_no_rejections_but_bring_no_tokens() {
    let mut hazards = Hazards::new();
    let mut half = accepted(3, &[3, 3, 3, 3]);
    half.decodes = 8;
    after(100, &half, &mut hazards);
    assert!(thousandths(hazards.hazard(0)) > 950);
    // The expected value is one, and half of the time nearly three more.
    let told = thousandths(hazards.tokens(false)[3]);
    assert!((2300..2550).contains(&told), "{told}");
}

/// They are neither accepted drafts nor rows without drafts.
#[test]
fn rows_with_forced_drafts_show_no_hazard_and_no_coverage() {
    let [mut alone, mut beside] = [(); 2].map(|()| Hazards::new());
    let own = accepted(3, &[3, 1, 2, 0]);
    for accepted in (0..=3).cycle().take(80) {
        alone.observe(&own);
        let mut seen = own;
        seen.decodes += 5;
        (0..5).for_each(|_| seen.count_forced(accepted));
        beside.observe(&seen);
    }
    let digest = |hazards: &Hazards| {
        let mut digest = Digest::new();
        hazards.digest(&mut digest);
        digest.value()
    };
    assert_eq!(digest(&alone), digest(&beside));
}

#[test]
fn drafts_that_cease_or_come_back_change_what_is_expected() {
    let mut hazards = Hazards::new();
    let tokens = |hazards: &Hazards| thousandths(hazards.tokens(false)[1]);
    let none = Seen {
        depth: 1,
        decodes: 1,
        ..Seen::default()
    };
    after(60, &accepted(1, &[1]), &mut hazards);
    assert!(tokens(&hazards) > 1900);
    after(60, &none, &mut hazards);
    assert!(tokens(&hazards) < 1200, "{}", tokens(&hazards));
    after(60, &accepted(1, &[1]), &mut hazards);
    assert!(tokens(&hazards) > 1800, "{}", tokens(&hazards));
}

#[test]
fn what_requests_come_opens_the_level_by_their_part_of_the_rows() {
    let gain = |joined: u32, rows: u32| {
        let mut hazards = Hazards::new();
        // After long runs of accepted drafts hardly anything moves the level.
        after(400, &exact(1, 400, &rising(900, 0)), &mut hazards);
        hazards.turn_over(joined, rows);
        let before = hazards.hazard(0);
        hazards.observe(&accepted(1, &[0]));
        before - hazards.hazard(0)
    };
    let [none, few, one] = [gain(0, 1), gain(1, 8), gain(1, 1)];
    assert!(none < few && 3 * few < one, "{none} {few} {one}");
    // The unknown level of a new request is half taken from the mean of all before it.
    let mut hazards = Hazards::new();
    after(400, &exact(1, 400, &rising(500, 0)), &mut hazards);
    after(20, &exact(1, 400, &rising(900, 0)), &mut hazards);
    let before = thousandths(hazards.hazard(0));
    hazards.turn_over(1, 1);
    let then = thousandths(hazards.hazard(0));
    assert!(
        before > 880 && (720..820).contains(&then),
        "{before} {then}"
    );
}

#[test]
fn one_row_shows_a_change_within_a_dozen_steps() {
    for (before, then) in [(4, 0), (0, 4)] {
        let mut hazards = Hazards::new();
        // First four of five are accepted, or one of five; then the other way round.
        let rows =
            |good: u32| (0..5).map(move |at| accepted(1, &[u32::from(at < 1 + good * 3 / 4)]));
        for _ in 0..60 {
            rows(before).for_each(|seen| hazards.observe(&seen));
        }
        let settled = thousandths(hazards.hazard(0));
        for _ in 0..12 {
            hazards.observe(&accepted(1, &[u32::from(then > 0)]));
        }
        let told = thousandths(hazards.hazard(0));
        assert!(
            (settled > 500) == (before > 0) && (told > 500) == (then > 0),
            "{settled} {told}"
        );
    }
}

#[test]
fn small_losses_are_free_and_large_ones_move_at_once() {
    let mut switch = Switch::new();
    for _ in 0..10_000 {
        switch.pass(10_000);
        assert!(!switch.is_due(ONE / 128, 0), "less than what is free");
    }
    assert!(!switch.is_due(ONE / 4, ONE / 4), "less than moving costs");
    assert!(switch.is_due(ONE / 8, 0));
    switch.moved();
    assert!(!switch.is_due(ONE / 8, 0), "the regret begins anew");
    assert!(switch.is_due(ONE / 2, 0));
}

#[test]
fn the_fewer_moves_are_left_the_more_must_be_lost() {
    let steps = |spent| {
        let mut switch = Switch::new();
        switch.spend(spent);
        (1..).find(|_| switch.is_due(ONE / 4, 0))
    };
    assert_eq!([0, 5, 7, 9].map(steps), [1, 1, 3, 9].map(Some));
}

#[test]
fn moves_stay_below_sixty_a_minute() {
    for us in [10_000, 30_000, 100_000] {
        let mut switch = Switch::new();
        let minutes = 10;
        let steps = minutes * 60_000_000 / us;
        let moves = (0..steps).filter(|_| {
            switch.pass(us);
            let due = switch.is_due(ONE / 2, 0);
            due.then(|| switch.moved()).is_some()
        });
        let moves = moves.count() as u64;
        assert!(
            moves > 20 * minutes && moves <= 60 * minutes,
            "{moves} at {us} us"
        );
    }
}

#[test]
fn what_decides_is_in_the_digest() {
    let value = |add: &dyn Fn(&mut Digest)| {
        let mut digest = Digest::new();
        add(&mut digest);
        digest.value()
    };
    let mut switch = Switch::new();
    let of = |switch: &Switch| value(&|digest| switch.digest(digest));
    let fresh = of(&switch);
    switch.is_due(ONE / 20, 0);
    let regrets = of(&switch);
    assert_ne!(fresh, regrets);
    switch.spend(1);
    assert_ne!(of(&switch), regrets);
    // A step that proposes nothing changes the coverage alone.
    let mut hazards = Hazards::new();
    let of = |hazards: &Hazards| value(&|digest| hazards.digest(digest));
    let fresh = of(&hazards);
    let none = Seen {
        depth: 1,
        decodes: 1,
        ..Seen::default()
    };
    hazards.observe(&none);
    assert_ne!(of(&hazards), fresh);
}

#[test]
fn probes_that_find_nothing_and_cost_much_get_rare() {
    let gaps = |cost: i64, rows: u32| {
        let mut probe = Probe::new();
        let mut last = 0;
        let mut gaps = Vec::new();
        for step in 1..5000 {
            if probe.going_on().is_none() && probe.is_due(step, cost) {
                probe.begin(step, 1, Probe::steps(rows));
                gaps.push(step - last);
                last = step;
            }
        }
        gaps
    };
    assert_eq!(gaps(0, 8)[..4], [32, 64, 128, 256]);
    assert!(gaps(0, 8).iter().all(|gap| *gap <= 1024));
    // At most one step in 256 is lost.
    assert_eq!(gaps(4 * ONE, 1)[0], 1024);
    assert_eq!(gaps(ONE / 2, 8)[0], 128);
    // A probe of one row takes eight steps.
    assert_eq!([1, 3, 8, 9].map(Probe::steps), [8, 3, 1, 1]);
    let mut probe = Probe::new();
    probe.begin(9, 3, Probe::steps(1));
    let lasts = std::iter::from_fn(|| probe.going_on());
    assert!(lasts.eq([3; 8]));
}

/// New requests are a part of all ranks' rows, however the rows lie on the ranks.
#[test]
fn new_requests_count_as_their_part_of_all_ranks_rows() {
    let told = |rows: u32, joined: u32| {
        let mut driver = driver();
        run(&mut driver, 100, 16, 7);
        run(&mut driver, 20, 16, 1);
        let seen = timed(accepted(driver.depth, &[1; 16]));
        driver.show_ranks(&seen, [rows, 16, joined]);
        driver.policy.outlook().acceptance
    };
    let evenly = told(4, 8);
    assert_eq!(told(16, 8), evenly);
    assert_eq!(told(9, 8), evenly);
    assert_ne!(told(4, 2), evenly, "fewer have come");
    assert_ne!(told(4, 0), evenly, "nobody has come");
}

/// Verification is flat to eight tokens, and a draft step takes a tenth of it.
fn profile() -> Vec<Seen> {
    let grid = [1, 2, 4, 8, 16, 32]
        .into_iter()
        .flat_map(|rows| [0, 1, 7].map(|depth| (rows, depth)));
    grid.map(|(rows, depth)| {
        timed(Seen {
            depth,
            decodes: rows,
            ..Seen::default()
        })
    })
    .collect()
}

fn timed(mut seen: Seen) -> Seen {
    seen.tokens = seen.decodes * (seen.depth + 1);
    seen.draft_us = 2_000 * seen.depth;
    seen.verify_us = 20_000 + 1_000 * seen.tokens.saturating_sub(8);
    seen
}

fn driver() -> Driver {
    Driver::new("goodput", &config(), &profile())
}

/// Shows steps at the depth decided last, in which all rows accept `accepts` drafts. Returns
/// the depths.
fn run(driver: &mut Driver, steps: usize, rows: usize, accepts: u32) -> Vec<u32> {
    let mut depths = vec![];
    for _ in 0..steps {
        let depth = driver.depth;
        driver.show(&timed(accepted(depth, &vec![accepts.min(depth); rows])));
        depths.push(driver.depth);
    }
    depths
}

#[test]
fn it_goes_deep_where_drafts_are_accepted_and_stops_drafting_where_they_are_not() {
    let mut driver = driver();
    assert_eq!(run(&mut driver, 60, 1, 7).last(), Some(&7));
    assert_eq!(run(&mut driver, 40, 1, 0).last(), Some(&0));
    // Depth 0 shows nothing; a probe does.
    let back = run(&mut driver, 400, 1, 7);
    assert_eq!(back.last(), Some(&7));
}

#[test]
fn another_batch_size_is_acted_on_at_once() {
    let mut driver = driver();
    run(&mut driver, 100, 1, 2);
    assert!(driver.depth >= 3, "two of three accepted by one row");
    let depths = run(&mut driver, 6, 32, 2);
    assert!(driver.depth < 3, "{depths:?}");
    let depths = run(&mut driver, 20, 1, 2);
    assert!(driver.depth >= 3, "{depths:?}");
}

/// Other programs made all drafts eleven times as long when they were timed before serving.
#[test]
fn drafts_that_looked_far_too_slow_are_tried_within_two_hundred_steps() {
    for rows in [1, 8] {
        let slow = |cell: Seen| Seen {
            draft_us: 11 * cell.draft_us,
            ..cell
        };
        let profile: Vec<_> = profile().into_iter().map(slow).collect();
        let mut driver = Driver::new("goodput", &config(), &profile);
        let all = std::mem::replace(&mut driver.candidates, vec![0]);
        let best = |driver: &mut Driver, steps: usize| {
            (0..steps).position(|_| {
                let depth = driver.depth;
                let seen = timed(accepted(depth, &vec![depth; rows]));
                driver.costs.correct(&seen, Loads::EVEN);
                driver.show(&seen);
                driver.depth >= 3 && driver.costs.step_ns(1, 7) < Some(50_000_000)
            })
        };
        // The policy may not draft at first, so nothing shows how long drafts take.
        assert_eq!(best(&mut driver, 300), None);
        driver.candidates = all;
        let steps = best(&mut driver, 200);
        assert!(steps.is_some(), "{rows}");
        assert!(driver.show_times(9, &timed(accepted(3, &vec![3; rows]))) >= 3);
    }
}

/// Ranks that run a part of a prompt in every step answer no more with deeper drafts. Short
/// steps bring the next part sooner.
#[test]
fn it_does_not_draft_where_all_ranks_are_full_of_prompts() {
    for (ranks, depth) in [(0, 7), (5, 0)] {
        let mut driver = driver();
        driver.long_prompts = LongPrompts {
            ranks,
            rows: 64 * ranks,
            waiting: 0,
            chunks: ranks,
            tokens: 3 * ranks,
        };
        let depths = (0..400).map(|_| {
            let seen = timed(accepted(driver.depth, &[driver.depth; 4]));
            driver.show(&Seen {
                prompt_tokens: 256,
                verify_us: seen.verify_us + 40_000,
                ..seen
            })
        });
        let depths: Vec<_> = depths.collect();
        let last = depths[300..].iter().filter(|last| **last == depth);
        assert!(last.count() > 80, "{ranks}: {depths:?}");
    }
}

#[test]
fn steps_with_prompts_show_acceptance_and_no_times() {
    let mut driver = driver();
    let before = driver.costs.step_ns(1, 3);
    for _ in 0..200 {
        let depth = driver.depth;
        let slow = Seen {
            prompt_tokens: 512,
            verify_us: 900_000,
            ..timed(accepted(depth, &[depth]))
        };
        driver.costs.correct(&slow, Loads::EVEN);
        driver.show(&slow);
    }
    assert_eq!(driver.depth, 7);
    assert_eq!(driver.costs.step_ns(1, 3), before);
}

#[test]
fn empty_batches_change_nothing() {
    let mut driver = driver();
    let depth = run(&mut driver, 60, 1, 7).pop();
    let mut before = Digest::new();
    driver.policy.digest(&mut before);
    assert_eq!(Some(driver.show_times(50, &Seen::default())), depth);
    let mut after = Digest::new();
    driver.policy.digest(&mut after);
    assert_eq!(before, after);
}

#[test]
fn a_depth_that_is_no_candidate_any_more_is_left_at_once() {
    let mut driver = driver();
    run(&mut driver, 60, 1, 7);
    driver.candidates = vec![0, 1];
    assert!(driver.show(&timed(accepted(7, &[7]))) <= 1);
}

#[test]
fn its_outlook_is_what_it_decides_by() {
    let mut driver = driver();
    run(&mut driver, 100, 4, 7);
    let outlook = driver.policy.outlook();
    let told = i64::from(outlook.step_us) * 1000;
    let truth = driver.costs.step_ns(4, 7).unwrap() as i64;
    assert!((told - truth).abs() * 20 < truth, "{told} {truth}");
    assert!(
        outlook
            .acceptance
            .iter()
            .all(|hazard| *hazard > 60_000 && *hazard < 65_536)
    );
}

//! Tests with several ranks, one of which has more rows than the others.

use super::*;
use crate::Costs;

/// Returns a step of `all` rows, with `rows` on the fullest rank. All drafts are accepted, and
/// the step takes the time of the fullest rank.
fn on_ranks(depth: u32, rows: u32, all: u32) -> Seen {
    let fullest = timed(accepted(depth, &vec![depth; rows as usize]));
    Seen {
        tokens: fullest.tokens,
        draft_us: fullest.draft_us,
        verify_us: fullest.verify_us,
        ..accepted(depth, &vec![depth; all as usize])
    }
}

/// The pass's tokens are those of the fullest rank, and so are the drafts that its rows may
/// propose.
#[test]
fn how_many_drafts_are_proposed_is_told_of_the_fullest_rank() {
    let expected = |all: u32| {
        let mut driver = driver();
        driver.candidates = vec![7];
        for _ in 0..100 {
            driver.show_ranks(&on_ranks(7, 8, all), [8, all, 0]);
        }
        driver.policy.outlook().step_us
    };
    assert_eq!(expected(64), expected(8));
    assert_eq!(expected(8), 14_000 + 20_000 + 56_000);
}

/// The cost of drafting again is counted per row of the fullest rank.
#[test]
fn drafting_again_costs_what_it_costs_the_fullest_rank() {
    // Counts the steps that go on without drafts although drafts would pay, after the cost of
    // beginning again has been seen.
    let pause = |all: u32, more_us: u32| {
        let mut driver = driver();
        let depths = driver.candidates.clone();
        let mut steps = 0;
        for _ in 0..2 {
            driver.candidates = vec![0];
            for _ in 0..20 {
                driver.show_ranks(&on_ranks(driver.depth, 2, all), [2, all, 0]);
            }
            driver.candidates = depths.clone();
            let rests = |driver: &mut Driver| {
                driver.show_ranks(&on_ranks(driver.depth, 2, all), [2, all, 0]) == 0
            };
            steps = (0..40).take_while(|_| rests(&mut driver)).count();
            let mut first = on_ranks(driver.depth, 2, all);
            first.draft_us += more_us;
            driver.show_ranks(&first, [2, all, 0]);
        }
        steps
    };
    for all in [2, 32] {
        let (cheap, dear) = (pause(all, 0), pause(all, 120_000));
        assert!(
            cheap <= 1 && (6..=12).contains(&dear),
            "{all}: {cheap} {dear}"
        );
    }
}

/// A step ran with the rows of its own batch, whatever rows the next batch has.
#[test]
fn the_time_of_a_step_is_judged_by_its_own_rows() {
    let seen = Seen {
        prompt_tokens: 256,
        verify_us: 90_000,
        ..timed(accepted(3, &[3, 3]))
    };
    let costs = Costs::new(&config(), &profile());
    let learnt = |rows: u32| {
        let mut goodput = Goodput::new(&config());
        goodput.observe(&Moment {
            step: 1,
            depth: 3,
            decided: 3,
            seen: &seen,
            seen_rows: 2,
            seen_taken: seen.taken(),
            rows,
            all_rows: rows,
            joined: 0,
            loads: Loads::EVEN,
            long_prompts: LongPrompts {
                ranks: 1,
                rows: 2,
                waiting: 0,
                chunks: 1,
                tokens: 2,
            },
            candidates: &[0, 3],
            costs: &costs,
        });
        let mut digest = Digest::default();
        goodput.digest(&mut digest);
        digest
    };
    assert_eq!(learnt(64), learnt(2));
}

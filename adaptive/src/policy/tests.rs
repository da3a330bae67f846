//! Forced drafts teach no policy anything.

use crate::{
    Policies, Seen,
    testing::{Driver, accepted, config},
};

/// Returns times by which drafting is worth it only if drafts are accepted.
fn timed(mut seen: Seen) -> Seen {
    seen.draft_us = 2_000 * seen.depth;
    seen.verify_us = 10_000 + 500 * seen.tokens;
    seen.extend_us = 100;
    seen
}

/// Returns the step with `rows` more rows whose drafts were forced, each accepting `accepted`.
fn with_forced(mut seen: Seen, rows: u32, accepted: u32) -> Seen {
    seen.decodes += rows;
    seen.tokens += rows * (seen.depth + 1);
    for _ in 0..rows {
        seen.count_forced(accepted);
    }
    seen
}

/// Whatever becomes of forced drafts, every policy decides as if all of them had been rejected.
/// A policy that counted them would go down in one case and up in the other.
#[test]
fn no_policy_learns_from_forced_drafts() {
    let profile: Vec<Seen> = [0, 1, 3, 5, 7]
        .into_iter()
        .flat_map(|depth| [1, 4, 8, 16].map(|rows| timed(accepted(depth, &vec![0; rows]))))
        .collect();
    let mut moved = 0;
    for policy in Policies::builtin().iter() {
        for rows in [&[0, 0, 1, 0][..], &[7, 7, 5, 7], &[]] {
            let [mut low, mut high] =
                [(); 2].map(|()| Driver::new(policy.name(), &config(), &profile));
            for step in 0..300 {
                let own: Vec<u32> = rows.iter().map(|row| low.depth.min(*row)).collect();
                let own = accepted(low.depth, &own);
                low.show(&timed(with_forced(own, 4, 0)));
                high.show(&timed(with_forced(own, 4, high.depth)));
                assert_eq!(low.depth, high.depth, "{}, step {step}", policy.name());
                moved += usize::from(low.depth != config().initial_depth);
            }
        }
    }
    assert!(moved > 0);
}

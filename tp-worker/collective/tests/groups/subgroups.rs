//! Groups of some of the ranks, and their ties to the first group.

use lockstep_collective::{Collective, CollectiveError};

use crate::support::{Members, impatient, on_threads};

/// Splits off the pair of ranks 0 and 1, or of ranks 2 and 3.
fn pair(member: &mut dyn Collective) -> Box<dyn Collective> {
    let color = member.rank() as u32 / 2;
    member.split(color).expect("split")
}

/// Ranks 2 and 3 diverge in their pair. Ranks 0 and 1 notice it in the first group, not before.
pub fn divergence_names_both_sides(members: Members) {
    let errors = on_threads(members, |mut member| {
        let rank = member.rank();
        let mut pair = pair(&mut *member);
        let mut all = [0; 2];
        pair.exchange(&[rank as u32 + 5], &mut all).expect("equal");
        let first = rank as u32 / 2 * 2 + 5;
        assert_eq!(all, [first, first + 1]);
        if rank < 2 {
            for _ in 0..3 {
                pair.barrier()
                    .expect("the other pair's error is not theirs");
            }
            return member.barrier().expect_err("two ranks are gone");
        }
        let words = vec![0; rank];
        let error = pair
            .exchange(&words, &mut vec![0; 2 * rank])
            .expect_err("lengths differ");
        assert_eq!(member.barrier(), Err(error.clone()), "all is broken");
        error
    });
    for (reporter, error) in errors.iter().enumerate() {
        let named = match error {
            CollectiveError::PeerLeft { rank, peer, .. } if reporter < 2 => {
                *peer >= 2 && *rank == reporter
            }
            CollectiveError::Mismatch { rank, peer, .. } => {
                (*rank, *peer) == (reporter, 5 - reporter)
            }
            _ => false,
        };
        assert!(named, "rank {reporter}: {error}");
    }
    let text = errors[2].to_string();
    for part in [
        "exchange of 2 words",
        "exchange of 3 words",
        "rank 3",
        "subgroup #",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Rank 3 stops taking part. Rank 2 names it by its number in the first group.
pub fn a_silent_rank_is_named(members: Members) {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let errors = on_threads(members, |mut member| {
        let done = done.clone();
        let mut pair = pair(&mut *member);
        match member.rank() {
            2 => {
                let error = pair.barrier().expect_err("nobody comes");
                done.send(()).expect("rank 3 waits");
                Some(error)
            }
            3 => {
                wait.lock().expect("no panic").recv().expect("rank 2 tells");
                None
            }
            _ => None,
        }
    });
    let Some(CollectiveError::Timeout {
        rank: 2,
        missing: 3,
        waited,
        operation,
    }) = &errors[2]
    else {
        panic!("{:?}", errors[2]);
    };
    assert!(*waited >= impatient().timeout);
    assert!(operation.group != 0 && operation.sequence == 0);
}

/// An abort by the first group's handle reaches all groups of the rank.
pub fn abort_ends_waits(members: Members) {
    let errors = on_threads(members, |mut member| {
        let mut pair = pair(&mut *member);
        let mut alone = member.split(member.rank() as u32).expect("split");
        match member.rank() {
            3 => {
                member.abort_handle().abort();
                let error = pair.barrier().expect_err("aborted");
                for group in [&mut member, &mut pair, &mut alone] {
                    assert_eq!(group.barrier(), Err(error.clone()));
                }
                error
            }
            2 => pair.barrier().expect_err("its peer was aborted"),
            _ => member.barrier().expect_err("a peer was aborted"),
        }
    });
    let named = matches!(
        errors[3],
        CollectiveError::Aborted {
            rank: 3,
            missing: None | Some(2)
        }
    );
    assert!(named, "{}", errors[3]);
    for (rank, error) in errors.iter().enumerate().take(3) {
        let left = matches!(error, CollectiveError::PeerLeft { rank: named, .. } if *named == rank);
        assert!(left, "{error}");
    }
    assert!(
        matches!(errors[2], CollectiveError::PeerLeft { peer: 3, .. }),
        "{}",
        errors[2]
    );
}

/// A rank that drops one of its groups does not leave; a rank that drops all does.
pub fn a_rank_leaves_with_its_last_group(members: Members) {
    let errors = on_threads(members, |mut member| {
        let mut pairs = pair(&mut *member);
        let third = member.rank() == 3;
        if third {
            drop(pairs);
            member.barrier().expect("it is still here");
            pairs = pair(&mut *member);
            drop(member);
            pairs.barrier().expect("it is still here");
            return None;
        }
        member.barrier().expect("rank 3 is still here");
        pairs = pair(&mut *member);
        pairs.barrier().expect("rank 3 is still here");
        let group = if member.rank() == 2 {
            &mut pairs
        } else {
            &mut member
        };
        Some(group.barrier().expect_err("rank 3 is gone"))
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error, CollectiveError::PeerLeft { .. }), "{error}");
    }
    assert!(
        matches!(errors[2], Some(CollectiveError::PeerLeft { peer: 3, .. })),
        "{:?}",
        errors[2]
    );
}

/// An error in the first group ends the rank's other groups, and the waits of peers there.
pub fn an_error_breaks_all_groups(members: Members) {
    let errors = on_threads(members, |mut member| {
        let mut pair = pair(&mut *member);
        let mut alone = member.split(member.rank() as u32).expect("split");
        match member.rank() {
            1 => {
                let error = member.broadcast(9, &mut [0]).expect_err("no rank 9");
                assert_eq!(pair.barrier(), Err(error.clone()));
                assert_eq!(alone.barrier(), Err(error.clone()));
                error
            }
            0 => pair.barrier().expect_err("its peer failed"),
            _ => member.barrier().expect_err("a peer failed"),
        }
    });
    assert!(matches!(
        errors[1],
        CollectiveError::Argument { rank: 1, .. }
    ));
    for rank in [0, 2, 3] {
        let error = &errors[rank];
        assert!(matches!(error, CollectiveError::PeerLeft { .. }), "{error}");
    }
}

/// There are two groups of the same ranks. Running one group on one rank and the other on the
/// other rank is a divergence on both sides.
pub fn equal_groups_are_told_apart(members: Members) {
    let errors = on_threads(members, |mut member| {
        let mut first = member.split(0).expect("split");
        let mut second = member.split(0).expect("split");
        first.barrier().expect("the same here and there");
        second.barrier().expect("the same here and there");
        let group = if member.rank() == 0 {
            &mut first
        } else {
            &mut second
        };
        let error = group
            .exchange(&[1], &mut [0; 2])
            .expect_err("groups differ");
        // All are kept until both ranks have failed; otherwise a drop would be the cause.
        (error, member, first, second)
    });
    for (error, ..) in &errors {
        assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
    }
}

/// Groups of groups: every rank has its name in the first group.
pub fn splits_of_splits(members: Members) {
    on_threads(members, |mut member| {
        let rank = member.rank() as u32;
        let mut four = member.split(rank / 4).expect("split");
        let mut two = four.split(rank % 2).expect("split");
        let mut all = [0; 2];
        two.exchange(&[rank], &mut all).expect("exchange");
        let first = rank / 4 * 4 + rank % 2;
        assert_eq!(all, [first, first + 2]);
        let mut sums = [rank as f32];
        two.all_reduce_sum(&mut sums).expect("sum");
        assert_eq!(sums, [(2 * first + 2) as f32]);
        // The first rank of each pair leaves. The other one knows it by its name.
        if rank == first {
            let error = two.broadcast(2, &mut []).expect_err("no rank 2");
            let named =
                matches!(error, CollectiveError::Argument { rank, .. } if rank as u32 == first);
            return assert!(named, "{error}");
        }
        let error = two.barrier().expect_err("its peer is gone");
        let CollectiveError::PeerLeft {
            rank: own, peer, ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((own as u32, peer as u32), (rank, first));
    });
}

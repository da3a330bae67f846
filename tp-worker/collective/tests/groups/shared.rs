//! Groups over shared memory, compared with a plain sum, and their failures.

use lockstep_collective::{Collective, CollectiveError, Options, local_group_with};
use proptest::prelude::*;

use crate::attached;
use crate::cross_group;
use crate::support::{self, Case, check_against_oracle};
use crate::uneven::{self, splits};

fn group(size: usize, max_elements: usize) -> Vec<Box<dyn Collective>> {
    let options = Options {
        max_elements,
        ..Options::default()
    };
    let boxed = |member| Box::new(member) as Box<dyn Collective>;
    local_group_with(size, &options)
        .into_iter()
        .map(boxed)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn equals_the_plain_sum(case in support::cases(100_000), capacity in 1_usize..70_000) {
        let capacity = capacity.max(case.longest() / 64);
        check_against_oracle(&case, group(case.size, capacity));
    }

    #[test]
    fn uneven_parts_equal_plain_loops(
        split in splits(), size in 1_usize..=8, capacity in 1_usize..4_000,
    ) {
        uneven::check_against_oracle(&split, group(size, capacity.max(64)));
    }

    #[test]
    fn words_arrive_with_what_they_were_attached_to(
        script in attached::scripts(), size in 1_usize..5, capacity in 100_usize..3_000,
    ) {
        attached::equals_the_account(&script, group(size, capacity));
    }
}

/// Every rank names another one that differs, and the words of both. Attached words travel
/// along.
#[test]
fn ranks_that_do_not_agree_name_both_sides() {
    let found = support::on_threads(group(3, 100), |mut member| {
        let rank = member.rank();
        assert_eq!(member.attach(1, &[5, rank as u32]), Ok(()));
        assert_eq!(member.agree(&[1, 2, 3]), Ok(()));
        let mut all = [0; 6];
        assert!(member.attached(&mut all));
        assert_eq!(all, [5, 0, 5, 1, 5, 2]);
        let words = [7, u32::from(rank == 1)];
        let error = member.agree(&words).expect_err("rank 1 differs");
        assert_eq!(member.barrier(), Err(error.clone()), "the group is broken");
        error
    });
    for (rank, error) in found.into_iter().enumerate() {
        let peer = usize::from(rank != 1);
        let words = |rank| vec![7, u32::from(rank == 1)];
        let (ours, theirs) = (words(rank), words(peer));
        let expected = CollectiveError::Disagree {
            rank,
            ours,
            peer,
            theirs,
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_rank_that_leaves_is_seen_by_the_others_alone() {
    let mut members = group(3, 1);
    let handles: Vec<_> = members.iter().map(|member| member.abort_handle()).collect();
    let departed = || {
        handles
            .iter()
            .map(|handle| handle.departed())
            .collect::<Vec<_>>()
    };
    assert_eq!(departed(), [None; 3]);
    drop(members.remove(1));
    assert_eq!(departed(), [Some(1), None, Some(1)]);
}

#[test]
fn direct_and_shared_sums_agree() {
    // 64 Ki elements in one chunk are summed by shares; in small chunks they are summed
    // directly.
    for size in [2, 3, 8] {
        let case = Case::new(size, 65_536, 1);
        check_against_oracle(&case, group(size, 65_536));
        check_against_oracle(&case, group(size, 1_000));
    }
}

#[test]
fn a_part_that_does_not_fit_is_refused_and_reaches_the_peer() {
    let mut members = group(2, 100);
    let error = members[0].sum_buffer(101).expect_err("100 fit");
    assert!(
        matches!(error, CollectiveError::Argument { rank: 0, .. }),
        "{error}"
    );
    assert_eq!(members[0].sum_buffer(1).expect_err("broken"), error);
    let error = members[1].sum_parts(1).expect_err("its peer failed");
    assert!(
        matches!(error, CollectiveError::PeerLeft { peer: 0, .. }),
        "{error}"
    );
}

#[test]
fn a_crowded_machine_gives_way_and_stays_in_step() {
    let options = Options {
        threads_per_rank: usize::MAX,
        ..support::patient()
    };
    let boxed = |member| Box::new(member) as Box<dyn Collective>;
    let members = local_group_with(8, &options).into_iter().map(boxed);
    support::many_operations_stay_in_step(members.collect(), 300);
}

#[test]
fn a_crowded_machine_takes_no_rank_for_astray() {
    // Every wait that does not end at once sleeps, and looks around before.
    let options = Options {
        threads_per_rank: usize::MAX,
        ..support::patient()
    };
    let boxed = |member| Box::new(member) as Box<dyn Collective>;
    for seed in 0..4 {
        let members = local_group_with(4, &options).into_iter().map(boxed);
        cross_group::any_order_that_all_share_is_right(members.collect(), seed, 3_000);
    }
}

support::failure_tests!(|size: usize, options: &Options| {
    let boxed = |member| Box::new(member) as Box<dyn Collective>;
    local_group_with(size, options)
        .into_iter()
        .map(boxed)
        .collect::<Vec<_>>()
});

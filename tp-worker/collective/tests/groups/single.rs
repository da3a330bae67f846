//! The group of one rank.

use lockstep_collective::{Collective, CollectiveError, Single};
use proptest::prelude::*;

use crate::attached::{equals_the_account, scripts};
use crate::support::{Call, Case, check_against_oracle, first_owns};
use crate::uneven::{self, splits};

#[test]
fn equals_the_plain_sum() {
    for length in [0, 1, 1_000] {
        check_against_oracle(&Case::new(1, length, 5), vec![Box::new(Single::new())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn words_arrive_at_once(script in scripts()) {
        equals_the_account(&script, vec![Box::new(Single::new())]);
    }

    #[test]
    fn uneven_parts_are_its_own(split in splits()) {
        uneven::check_against_oracle(&split, vec![Box::new(Single::new())]);
    }
}

#[test]
fn refuses_wrong_arguments_and_ends_when_aborted() {
    let wrong: [Call; 12] = [
        |member| member.gather(&[0.0], first_owns(&[1]), &mut []),
        |member| member.gather(&[0.0], first_owns(&[1, 1]), &mut [0.0; 2]),
        |member| member.gather(&[0.0], first_owns(&[2]), &mut [0.0; 2]),
        |member| member.gather(&[0.0], first_owns(&[1]), &mut [0.0; 2]),
        |member| member.broadcast(1, &mut [0]),
        |member| member.exchange(&[0], &mut [0; 2]),
        |member| member.all_gather(&[0.0], &[1], &mut []),
        |member| member.all_gather(&[0.0], &[0], &mut []),
        |member| member.reduce_scatter_sum(&[0.0; 2], &[0..2; 1], &mut [0.0]),
        |member| member.reduce_scatter_parts(1, &[0..1; 1]).map(|_| ()),
        |member| member.sum_parts(1).map(|_| ()),
        |member| member.attach(1, &[]),
    ];
    for wrong in wrong {
        let mut member = Single::new();
        let error = wrong(&mut member).expect_err("it does not fit");
        assert!(
            matches!(error, CollectiveError::Argument { rank: 0, .. }),
            "{error:?}"
        );
        assert_eq!(member.barrier(), Err(error), "the group is broken");
    }
    let mut member = Single::new();
    let split = member.split(5).expect("split");
    assert_eq!((split.rank(), split.size()), (0, 1));
    member.abort_handle().abort();
    for mut member in [Box::new(member) as Box<dyn Collective>, split] {
        let aborted = Err(CollectiveError::Aborted {
            rank: 0,
            missing: None,
        });
        assert_eq!(member.barrier(), aborted);
        assert_eq!(member.all_reduce_sum(&mut [0.0]), aborted);
        assert_eq!(member.exchange(&[0], &mut [0]), aborted);
        assert_eq!(member.attach(1, &[0]), aborted);
    }
}

//! The group of one rank.

use lockstep_collective::{Collective, CollectiveError, Single};

use crate::support::{Case, check_against_oracle};

#[test]
fn equals_the_plain_sum() {
    for length in [0, 1, 1_000] {
        check_against_oracle(&Case::new(1, length, 5), vec![Box::new(Single::new())]);
    }
}

#[test]
fn refuses_wrong_arguments_and_ends_when_aborted() {
    let mut member = Single::new();
    for error in [
        member.gather(&[0.0], &[1], None),
        member.gather(&[0.0], &[1, 1], Some(&mut [0.0; 2])),
        member.gather(&[0.0], &[2], Some(&mut [0.0; 2])),
        member.gather(&[0.0], &[1], Some(&mut [0.0; 2])),
        member.broadcast(1, &mut [0]),
    ] {
        assert!(
            matches!(error, Err(CollectiveError::Argument { rank: 0, .. })),
            "{error:?}"
        );
    }
    member.abort_handle().abort();
    assert_eq!(member.barrier(), Err(CollectiveError::Aborted { rank: 0 }));
    assert_eq!(
        member.all_reduce_sum(&mut [0.0]),
        Err(CollectiveError::Aborted { rank: 0 })
    );
}

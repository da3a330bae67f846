use proptest::prelude::*;

use super::*;

proptest! {
    /// All rows cross once, in order, and come back to all ranks that have them.
    #[test]
    fn rows_cross_once_and_come_back(
        each in 1..5_usize,
        rows in prop::collection::vec(prop_oneof![Just(0), 0..20_usize], 1..5),
    ) {
        let ranks = each * rows.len();
        let (mut brought, mut next) = (Vec::new(), 0);
        let mut taken = Vec::new();
        for rank in 0..ranks {
            let topology = Topology::new(rank, ranks, rows.len());
            let mut crossing = Crossing::new(topology);
            crossing.set(&[7].repeat(rows.len()));
            crossing.set(&rows);
            let start = rows[..topology.dp_rank()].iter().sum::<usize>();
            let first = start + crossing.first;
            brought.extend(first..first + crossing.counts[rank]);
            prop_assert_eq!(crossing.all(), rows.iter().sum::<usize>());
            taken.push(start..start + rows[topology.dp_rank()]);
            next = next.max(crossing.all());
        }
        prop_assert_eq!(brought, (0..next).collect::<Vec<_>>());
        let mut crossing = Crossing::new(Topology::new(0, ranks, rows.len()));
        crossing.set(&rows);
        prop_assert_eq!(crossing.rows, taken);
        let most = crossing.counts.iter().max().unwrap();
        let longest = rows.iter().max().unwrap();
        prop_assert!(*most <= longest.div_ceil(each), "shares are even");
    }
}

#[test]
fn what_does_not_fit_the_batch_is_refused() {
    let mut world = Crossings::new(Topology::new(1, 2, 2));
    let rows = |tokens: &[usize], wanted: &[usize]| WorldRows {
        tokens: tokens.to_vec(),
        wanted: wanted.to_vec(),
    };
    assert!(world.set(&rows(&[0, 3], &[0, 1]), (3, 1), 8).is_ok());
    for (tokens, wanted) in [
        (&[3][..], &[1][..]),
        (&[0, 3], &[0]),
        (&[0, 2], &[0, 1]),
        (&[0, 3], &[0, 2]),
        (&[1, 3], &[2, 1]),
        (&[9, 3], &[0, 1]),
    ] {
        let error = world.set(&rows(tokens, wanted), (3, 1), 8).unwrap_err();
        assert!(error.to_string().contains("DP rank 1 of 2"), "{error}");
    }
}

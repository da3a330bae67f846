use lockstep_collective::{CollectiveError, Single, local_group};

use super::*;

/// Forms the groups of `ranks` ranks with `dp_size`. Returns the results of `found` by rank.
fn formed<T: Send>(
    ranks: usize,
    dp_size: usize,
    found: impl Fn(Groups) -> T + Sync,
) -> Vec<Result<T, CollectiveError>> {
    let found = &found;
    std::thread::scope(|scope| {
        let ranks = local_group(ranks)
            .into_iter()
            .map(|group| scope.spawn(move || Groups::form(Box::new(group), dp_size).map(found)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn dp_ranks_are_neighbours_of_equal_number() {
    for (ranks, dp_size) in [(4, 1), (4, 2), (4, 4), (6, 2), (2, 2)] {
        let each = ranks / dp_size;
        let found = formed(ranks, dp_size, |mut groups| {
            let rank = groups.rank_and_size(Axis::World).0;
            let mut who = vec![0; each];
            let attention = groups.of(Axis::Attention);
            attention.exchange(&[rank as u32], &mut who).unwrap();
            let axes = [Axis::World, Axis::Attention, Axis::Alone];
            let sizes = axes.map(|axis| {
                let group = groups.of(axis);
                let seen = (group.rank(), group.size());
                assert_eq!(groups.rank_and_size(axis), seen);
                seen
            });
            (sizes, who)
        });
        for (rank, found) in found.into_iter().enumerate() {
            let first = rank / each * each;
            let who: Vec<u32> = (first..first + each).map(|rank| rank as u32).collect();
            let sizes = [(rank, ranks), (rank - first, each), (0, 1)];
            assert_eq!(found, Ok((sizes, who)), "{ranks} ranks, {dp_size} DP ranks");
        }
    }
}

/// With one DP rank, both axes are one group. Words that are attached in one travel with the
/// other's operations, and forming it exchanged nothing.
#[test]
fn one_dp_rank_is_the_world() {
    let found = formed(2, 1, |mut groups| {
        let rank = groups.rank_and_size(Axis::Attention).0;
        let control = groups.of(Axis::World);
        control.attach(0, &[rank as u32]).unwrap();
        groups.of(Axis::Attention).barrier().unwrap();
        let mut all = [9; 2];
        let came = groups.of(Axis::World).attached(&mut all);
        (came, all)
    });
    assert_eq!(found, [Ok((true, [0, 1])), Ok((true, [0, 1]))]);
}

#[test]
fn what_does_not_divide_is_refused_before_anybody_waits() {
    for dp_size in [0, 3, 8] {
        for found in formed(4, dp_size, |_| ()) {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("--dp-size"), "{error}");
        }
    }
    assert!(Groups::form(Box::new(Single::new()), 1).is_ok());
}

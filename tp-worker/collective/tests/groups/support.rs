//! The expected results, and tests that every transport has to pass.

use std::thread;
use std::time::Duration;

use std::ops::Range;

use lockstep_collective::{Collective, CollectiveError, Options, Owners};
use proptest::prelude::*;

pub type Members = Vec<Box<dyn Collective>>;
/// A call of one rank.
pub type Call = fn(&mut dyn Collective) -> Result<(), CollectiveError>;

/// Data of every rank for one round of all operations.
#[derive(Debug, Clone)]
pub struct Case {
    pub size: usize,
    pub data: Vec<Vec<f32>>,
    pub counts: Vec<usize>,
    pub root: usize,
}

/// Makes cases of 1, 2, 3, 4 or 8 ranks and up to `longest` elements.
pub fn cases(longest: usize) -> impl Strategy<Value = Case> {
    let length = prop_oneof![0..40_usize, 0..5_000_usize, 0..=longest];
    let size = prop_oneof![Just(1), Just(2), Just(3), Just(4), Just(8)];
    (size, length, any::<u64>()).prop_map(|(size, length, seed)| Case::new(size, length, seed))
}

impl Case {
    /// Makes `length` elements per rank, mixed in sign and magnitude.
    pub fn new(size: usize, length: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let value = |bits: u64| ((bits >> 40) as f32 - 8e6) * 2f32.powi((bits % 41) as i32 - 20);
        let data = (0..size)
            .map(|_| (0..length).map(|_| value(next())).collect())
            .collect();
        let counts = (0..size).map(|_| next() as usize % (length + 1)).collect();
        Self {
            size,
            data,
            counts,
            root: next() as usize % size,
        }
    }

    pub fn longest(&self) -> usize {
        self.data[0].len()
    }

    /// Returns the case for some of the ranks, cut to at most `length` elements.
    fn among(&self, ranks: &[usize], length: usize) -> Self {
        let cut = |data: &[f32]| data[..data.len().min(length)].to_vec();
        Self {
            size: ranks.len(),
            data: ranks.iter().map(|&rank| cut(&self.data[rank])).collect(),
            counts: ranks
                .iter()
                .map(|&rank| self.counts[rank].min(length))
                .collect(),
            root: self.root % ranks.len(),
        }
    }

    pub fn sum(&self) -> Vec<f32> {
        let mut sum = self.data[0].clone();
        for data in &self.data[1..] {
            sum.iter_mut().zip(data).for_each(|(sum, x)| *sum += x);
        }
        sum
    }

    fn gathered(&self) -> Vec<f32> {
        let parts = self.data.iter().zip(&self.counts);
        parts
            .flat_map(|(data, &count)| &data[..count])
            .copied()
            .collect()
    }
}

pub fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

/// Runs `work` on a thread per rank and returns the results by rank.
pub fn on_threads<T: Send>(
    members: Members,
    work: impl Fn(Box<dyn Collective>) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |member| scope.spawn(move || work(member));
        let threads: Vec<_> = members.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank panicked"))
            .collect()
    })
}

/// Colors of ranks: for a group of all, for groups of every other rank, and for each rank
/// alone.
const COLORS: [fn(usize) -> u32; 3] = [|_| 7, |rank| rank as u32 % 2, |rank| rank as u32];

/// Runs all operations twice and compares the results with plain loops, bit for bit. Then does
/// so in groups of some of the ranks, and in the first group again.
pub fn check_against_oracle(case: &Case, members: Members) {
    let everybody: Vec<usize> = (0..case.size).collect();
    let small = case.among(&everybody, 3_000);
    on_threads(members, |mut member| {
        let rank = member.rank();
        check_operations(case, &mut *member);
        check_operations(case, &mut *member);
        for color in COLORS {
            let mut group = member.split(color(rank)).expect("split");
            let mut ranks = everybody.clone();
            ranks.retain(|&other| color(other) == color(rank));
            assert_eq!(ranks[group.rank()], rank);
            assert_eq!(group.is_crowded(), member.is_crowded());
            check_operations(&small.among(&ranks, 3_000), &mut *group);
            check_operations(&small, &mut *member);
            check_operations(&small.among(&ranks, 700), &mut *group);
        }
    });
}

fn check_operations(case: &Case, member: &mut dyn Collective) {
    let (sum, gathered) = (bits(&case.sum()), bits(&case.gathered()));
    let rank = member.rank();
    assert_eq!(member.size(), case.size);
    let mut data = case.data[rank].clone();
    member.all_reduce_sum(&mut data).expect("sum");
    assert!(bits(&data) == sum, "sum on rank {rank}");
    let mut recv = vec![0.0; if rank == 0 { gathered.len() } else { 0 }];
    let send = &case.data[rank][..case.counts[rank]];
    member
        .gather(send, first_owns(&case.counts), &mut recv)
        .expect("gather");
    assert!(rank != 0 || bits(&recv) == gathered, "gather");
    check_parts(case, member, &sum, &gathered);
    check_equal_parts(case, member, &sum);
    member.barrier().expect("barrier");
    let mut words = bits(&case.data[rank]);
    member.broadcast(case.root, &mut words).expect("broadcast");
    assert!(
        words == bits(&case.data[case.root]),
        "broadcast on rank {rank}"
    );
}

/// Checks operations to which every rank brings the same amount.
fn check_equal_parts(case: &Case, member: &mut dyn Collective, sum: &[u32]) {
    let (rank, own) = (member.rank(), &case.data[member.rank()]);
    let all = case.data.concat();
    let mut gathered = vec![f32::NAN; all.len()];
    let counts = vec![own.len(); case.size];
    member
        .all_gather(own, &counts, &mut gathered)
        .expect("all_gather");
    assert!(bits(&gathered) == bits(&all), "all_gather on rank {rank}");
    let mut words = vec![u32::MAX; all.len()];
    member.exchange(&bits(own), &mut words).expect("exchange");
    assert!(words == bits(&all), "exchange on rank {rank}");
    let each = own.len() / case.size;
    let mut part = vec![f32::NAN; each];
    member
        .reduce_scatter_sum(
            &own[..each * case.size],
            &shares(case.size, each),
            &mut part,
        )
        .expect("reduce_scatter");
    let expected = &sum[rank * each..(rank + 1) * each];
    assert!(bits(&part) == expected, "reduce_scatter on rank {rank}");
}

/// Sums and gathers as many elements as the group lends, without a copy.
fn check_parts(case: &Case, member: &mut dyn Collective, sum: &[u32], gathered: &[u32]) {
    let (rank, own) = (member.rank(), &case.data[member.rank()]);
    let length = own.len().min(member.sum_capacity());
    let buffer = member.sum_buffer(length).expect("it has room");
    buffer.copy_from_slice(&own[..length]);
    let parts = member.sum_parts(length).expect("sum");
    let mut found = parts.by_rank()[0].to_vec();
    for part in &parts.by_rank()[1..] {
        assert_eq!(part.len(), length);
        found.iter_mut().zip(*part).for_each(|(sum, x)| *sum += x);
    }
    assert!(bits(&found) == sum[..length], "parts on rank {rank}");
    if case
        .counts
        .iter()
        .all(|&count| count <= member.parts_capacity())
    {
        let send = &own[..case.counts[rank]];
        let owners = first_owns(&case.counts);
        let parts = member.gather_parts(send, owners).expect("gather");
        let expected = if rank == 0 { gathered } else { &[] };
        assert!(
            bits(&parts.by_rank().concat()) == expected,
            "gathered parts"
        );
    }
}

/// Makes owners: the first rank gets one row of all ranks' columns, the others nothing.
pub fn first_owns(widths: &[usize]) -> Owners<'_> {
    const ROWS: [Range<usize>; 8] = [0..1, 0..0, 0..0, 0..0, 0..0, 0..0, 0..0, 0..0];
    Owners {
        widths,
        rows: &ROWS[..widths.len()],
    }
}

/// Returns equal parts of `each` elements, by rank.
pub fn shares(ranks: usize, each: usize) -> Vec<Range<usize>> {
    (0..ranks)
        .map(|rank| rank * each..(rank + 1) * each)
        .collect()
}

/// Settings with a deadline that no healthy rank misses.
pub fn patient() -> Options {
    Options {
        max_elements: 1_000,
        ..Options::default()
    }
}

/// Settings with a deadline that a test can wait for.
pub fn impatient() -> Options {
    Options {
        timeout: Duration::from_millis(300),
        ..patient()
    }
}

/// All ranks run the same operation, then rank 2 another one.
pub fn divergence_names_both_sides(members: Members) {
    let errors = on_threads(members, |mut member| {
        let mut data = vec![1.0; 2_500];
        member.all_reduce_sum(&mut data).expect("all the same");
        let length = if member.rank() == 2 { 2_400 } else { 2_500 };
        let error = member
            .all_reduce_sum(&mut data[..length])
            .expect_err("lengths differ");
        let again = member.barrier().expect_err("the group is broken");
        assert_eq!(error, again);
        error
    });
    for (reporter, error) in errors.iter().enumerate() {
        let CollectiveError::Mismatch {
            rank,
            ours,
            peer,
            theirs,
        } = error
        else {
            panic!("rank {reporter}: {error}");
        };
        let other = if reporter == 2 { 2_500 } else { 2_400 };
        assert_eq!(
            (*rank, theirs.length, theirs.sequence),
            (reporter, other, 1)
        );
        assert_eq!(*peer == 2, reporter != 2);
        assert_ne!(ours, theirs);
        let text = error.to_string();
        assert!(text.contains("2500") && text.contains("2400"), "{text}");
    }
}

/// Operations of a group of two. If two ranks run different ones, they must be told.
const OPERATIONS: [Call; 20] = [
    |member| member.all_reduce_sum(&mut [0.0; 4]),
    |member| member.all_reduce_sum(&mut [0.0; 2]),
    |member| member.sum_parts(1).map(|_| ()),
    |member| member.all_gather(&[0.0; 2], &[2, 2], &mut [0.0; 4]),
    |member| member.all_gather(&[0.0; 4], &[4, 4], &mut [0.0; 8]),
    |member| uneven_gather(member, &[1, 3]),
    |member| uneven_gather(member, &[3, 1]),
    |member| member.reduce_scatter_sum(&[0.0; 4], &[0..2, 2..4], &mut [0.0; 2]),
    |member| member.reduce_scatter_sum(&[0.0; 4], &[0..2, 0..2], &mut [0.0; 2]),
    |member| member.reduce_scatter_sum(&[0.0; 2], &[0..1, 1..2], &mut [0.0; 1]),
    |member| member.exchange(&[0; 2], &mut [0; 4]),
    |member| member.exchange(&[0; 4], &mut [0; 8]),
    |member| member.exchange(&[], &mut []),
    |member| rows_to(member, &[0..1, 0..0]),
    |member| rows_to(member, &[0..1, 0..1]),
    |member| rows_to(member, &[0..0, 0..1]),
    |member| columns_of(member, &[1, 3]),
    |member| member.broadcast(0, &mut [0; 2]),
    |member| member.broadcast(1, &mut [0; 2]),
    |member| member.barrier(),
];

fn uneven_gather(member: &mut dyn Collective, counts: &[usize]) -> Result<(), CollectiveError> {
    let own = vec![0.0; counts[member.rank()]];
    member.all_gather(&own, counts, &mut [0.0; 4])
}

fn rows_to(member: &mut dyn Collective, rows: &[Range<usize>]) -> Result<(), CollectiveError> {
    let widths = &[2, 2];
    let owners = Owners { widths, rows };
    member.gather_parts(&[0.0; 2], owners).map(|_| ())
}

fn columns_of(member: &mut dyn Collective, widths: &[usize]) -> Result<(), CollectiveError> {
    let own = vec![0.0; widths[member.rank()]];
    member.gather_parts(&own, first_owns(widths)).map(|_| ())
}

/// Ranks that run different operations are told both.
pub fn different_operations_are_found(group: impl Fn() -> Members) {
    for first in 0..OPERATIONS.len() {
        for second in first + 1..OPERATIONS.len() {
            let errors = on_threads(group(), |mut member| {
                let number = if member.rank() == 0 { first } else { second };
                OPERATIONS[number](&mut *member).expect_err("operations differ")
            });
            let sides = errors.iter().map(|error| match error {
                CollectiveError::Mismatch { ours, theirs, .. } => (*ours, *theirs),
                other => panic!("{first} and {second}: {other}"),
            });
            let [(ours, theirs), (back, forth)] = sides.collect::<Vec<_>>()[..] else {
                panic!("two ranks");
            };
            assert_eq!((ours, theirs), (forth, back), "{first} and {second}");
            assert_ne!(ours.to_string(), theirs.to_string());
        }
    }
}

/// Buffers that don't fit each other are refused before anything moves.
pub fn wrong_lengths_are_refused(group: impl Fn() -> Members) {
    let wrong: [Call; 12] = [
        |member| member.exchange(&[0; 2], &mut [0; 3]),
        |member| member.all_gather(&[0.0; 2], &[2, 2], &mut [0.0; 5]),
        |member| member.all_gather(&[], &[0, 0], &mut [0.0; 1]),
        |member| member.all_gather(&[0.0; 2], &[2], &mut [0.0; 2]),
        |member| member.all_gather(&[0.0; 2], &[1, 1], &mut [0.0; 2]),
        |member| member.reduce_scatter_sum(&[0.0; 4], &[0..2, 2..5], &mut [0.0; 2]),
        |member| member.reduce_scatter_sum(&[0.0; 4], &[0..2, 2..4], &mut [0.0; 4]),
        |member| member.reduce_scatter_sum(&[0.0; 4], &[0..4; 1], &mut [0.0; 4]),
        |member| {
            let backwards = Range { start: 3, end: 2 };
            member.reduce_scatter_sum(&[0.0; 4], &[0..2, backwards], &mut [0.0; 2])
        },
        |member| member.reduce_scatter_parts(4, &[0..2, 2..5]).map(|_| ()),
        |member| member.gather(&[0.0; 3], first_owns(&[2, 2]), &mut []),
        |member| member.gather(&[0.0; 2], first_owns(&[2, 2]), &mut [0.0; 1]),
    ];
    for (number, wrong) in wrong.iter().enumerate() {
        for mut member in group() {
            let rank = member.rank();
            let error = wrong(&mut *member).expect_err("lengths differ");
            let refused =
                matches!(error, CollectiveError::Argument { rank: named, .. } if named == rank);
            assert!(refused, "{number}: {error}");
            assert_eq!(member.barrier(), Err(error), "the group is broken");
        }
    }
}

/// Rank 0 waits for a rank that never comes, until another thread aborts the wait.
pub fn abort_ends_a_wait(mut members: Members) {
    let mut peer = members.pop().expect("rank 1");
    let mut waiting = members.pop().expect("rank 0");
    let handle = waiting.abort_handle();
    let waiter = thread::spawn(move || {
        let error = waiting.barrier().expect_err("aborted");
        assert_eq!(waiting.barrier().expect_err("still aborted"), error);
        error
    });
    assert!(!handle.is_aborted());
    handle.abort();
    let error = waiter.join().expect("waiter");
    // The rank's other work has to end, though the rank has left by now.
    assert!(handle.is_aborted());
    // Ranks that share memory know the rank that was waited for.
    let named = matches!(
        error,
        CollectiveError::Aborted {
            rank: 0,
            missing: None | Some(1)
        }
    );
    assert!(named, "{error}");
    // Rank 0 may have arrived before it was aborted. Then that barrier is complete.
    let error = peer.barrier().and_then(|()| peer.barrier());
    let error = error.expect_err("its peer is gone");
    assert!(
        matches!(
            error,
            CollectiveError::PeerLeft {
                rank: 1,
                peer: 0,
                ..
            }
        ),
        "{error}"
    );
}

/// A rank that stops taking part is named after the deadline.
pub fn a_silent_rank_is_named(mut members: Members) {
    let silent = members.pop().expect("rank 1");
    let error = members[0].barrier().expect_err("nobody comes");
    let CollectiveError::Timeout {
        rank: 0,
        missing: 1,
        waited,
        operation,
    } = error
    else {
        panic!("{error}");
    };
    assert!(waited >= impatient().timeout);
    assert_eq!(operation.sequence, 0);
    drop(silent);
}

/// Dropping a rank ends the waits of the others long before the deadline.
pub fn a_dropped_rank_is_noticed(mut members: Members) {
    drop(members.pop());
    let errors = on_threads(members, |mut member| {
        member.barrier().expect_err("nobody comes")
    });
    for error in errors {
        assert!(matches!(error, CollectiveError::PeerLeft { .. }), "{error}");
    }
}

/// A caller's mistake breaks the group at once; peers are not left waiting.
pub fn a_wrong_argument_reaches_the_peers(members: Members) {
    let errors = on_threads(members, |mut member| match member.rank() {
        0 => member
            .gather(&[0.0; 3], first_owns(&[3, 3]), &mut [0.0; 5])
            .expect_err("5 is not 6"),
        _ => member
            .gather(&[0.0; 3], first_owns(&[3, 3]), &mut [])
            .expect_err("its peer failed"),
    });
    assert!(
        matches!(errors[0], CollectiveError::Argument { rank: 0, .. }),
        "{}",
        errors[0]
    );
    assert!(
        matches!(errors[1], CollectiveError::PeerLeft { peer: 0, .. }),
        "{}",
        errors[1]
    );
}

/// Runs many small operations in a row, so that many interleavings of phases occur.
pub fn many_operations_stay_in_step(members: Members, rounds: u32) {
    on_threads(members, |mut member| {
        let (rank, size) = (member.rank() as u32, member.size() as u32);
        for round in 0..rounds {
            let mut data = [(round + rank) as f32; 7];
            member.all_reduce_sum(&mut data).expect("sum");
            let expected = (size * round + size * (size - 1) / 2) as f32;
            assert_eq!(data, [expected; 7], "round {round}");
            let mut word = [round * 100 + rank];
            let root = round as usize % member.size();
            member.broadcast(root, &mut word).expect("broadcast");
            assert_eq!(word, [round * 100 + root as u32]);
        }
    });
}

/// The failure tests for a transport. `$group` is `|size, &Options| -> Members`.
macro_rules! failure_tests {
    ($group:expr) => {
        #[test]
        fn divergence_names_both_sides() {
            crate::support::divergence_names_both_sides(($group)(4, &support::patient()));
        }
        #[test]
        fn different_operations_are_found() {
            crate::support::different_operations_are_found(|| ($group)(2, &support::patient()));
        }
        #[test]
        fn wrong_lengths_are_refused() {
            crate::support::wrong_lengths_are_refused(|| ($group)(2, &support::patient()));
        }
        #[test]
        fn abort_ends_a_wait() {
            crate::support::abort_ends_a_wait(($group)(2, &support::patient()));
        }
        #[test]
        fn a_silent_rank_is_named() {
            crate::support::a_silent_rank_is_named(($group)(2, &support::impatient()));
        }
        #[test]
        fn a_dropped_rank_is_noticed() {
            crate::support::a_dropped_rank_is_noticed(($group)(3, &support::patient()));
        }
        #[test]
        fn a_wrong_argument_reaches_the_peers() {
            crate::support::a_wrong_argument_reaches_the_peers(($group)(2, &support::patient()));
        }
        #[test]
        fn many_operations_stay_in_step() {
            crate::support::many_operations_stay_in_step(($group)(2, &support::patient()), 20_000);
            crate::support::many_operations_stay_in_step(($group)(4, &support::patient()), 1_000);
        }
        #[test]
        fn a_subgroup_diverges_by_itself_and_ends_all() {
            crate::subgroups::divergence_names_both_sides(($group)(4, &support::patient()));
        }
        #[test]
        fn a_silent_rank_of_a_subgroup_is_named() {
            crate::subgroups::a_silent_rank_is_named(($group)(4, &support::impatient()));
        }
        #[test]
        fn an_abort_ends_the_waits_in_subgroups() {
            crate::subgroups::abort_ends_waits(($group)(4, &support::patient()));
        }
        #[test]
        fn a_rank_leaves_with_its_last_group() {
            crate::subgroups::a_rank_leaves_with_its_last_group(($group)(4, &support::patient()));
        }
        #[test]
        fn an_error_breaks_all_groups_of_a_rank() {
            crate::subgroups::an_error_breaks_all_groups(($group)(4, &support::patient()));
        }
        #[test]
        fn groups_of_the_same_ranks_are_told_apart() {
            crate::subgroups::equal_groups_are_told_apart(($group)(2, &support::patient()));
        }
        #[test]
        fn waits_in_different_groups_are_found() {
            let group = || ($group)(4, &crate::support::patient());
            crate::cross_group::waits_in_different_groups_are_found(group);
        }
        #[test]
        fn wider_circles_of_waits_end_by_the_deadline() {
            let group = ($group)(4, &crate::support::impatient());
            crate::cross_group::wider_circles_end_by_the_deadline(group);
        }
        #[test]
        fn any_order_that_all_ranks_share_is_right() {
            let group = ($group)(4, &crate::support::patient());
            crate::cross_group::any_order_that_all_share_is_right(group, 1, 2_000);
        }
        #[test]
        fn different_words_are_found() {
            crate::attached::different_words_are_found(|| ($group)(4, &support::patient()));
        }
        #[test]
        fn the_error_says_what_differs() {
            crate::attached::the_error_says_what_differs(|| ($group)(2, &support::patient()));
        }
        #[test]
        fn words_tell_why_operations_differ() {
            crate::attached::words_tell_why_operations_differ(|| ($group)(2, &support::patient()));
        }
        #[test]
        fn words_add_no_operation() {
            crate::attached::no_operation_is_added(($group)(2, &support::patient()));
        }
        #[test]
        fn words_that_do_not_fit_are_refused() {
            crate::attached::what_does_not_fit_is_refused(|| ($group)(2, &support::patient()));
        }
        #[test]
        fn groups_with_words_attached_fail_like_others() {
            let group = |size: usize, options: &lockstep_collective::Options| {
                crate::attached::attaching(($group)(size, options))
            };
            crate::support::divergence_names_both_sides(group(4, &support::patient()));
            crate::support::abort_ends_a_wait(group(2, &support::patient()));
            crate::support::a_silent_rank_is_named(group(2, &support::impatient()));
            crate::support::a_dropped_rank_is_noticed(group(3, &support::patient()));
            crate::support::a_wrong_argument_reaches_the_peers(group(2, &support::patient()));
            crate::subgroups::abort_ends_waits(group(4, &support::patient()));
        }
        #[test]
        fn groups_can_be_split_again() {
            crate::subgroups::splits_of_splits(($group)(8, &support::patient()));
        }
    };
}
pub(crate) use failure_tests;

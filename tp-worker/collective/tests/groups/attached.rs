//! Words that travel with operations, compared with a plain record of each rank's words.

use lockstep_collective::{ATTACHED_WORDS, Collective, CollectiveError};
use proptest::prelude::*;

use crate::support::{Members, first_owns, on_threads, shares};

/// The next act of all ranks of a group.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Attach `count` words, `shared` of them shared.
    Attach { shared: usize, count: usize },
    /// Run the operation of this number, with `length` elements.
    Operate { number: usize, length: usize },
}

/// Makes acts in two groups. An act is in the group of all ranks if its flag is true.
pub fn scripts() -> impl Strategy<Value = Vec<(bool, Act)>> {
    let attach = (0..=ATTACHED_WORDS, 1..=ATTACHED_WORDS).prop_map(|(shared, count)| Act::Attach {
        shared: shared.min(count),
        count,
    });
    let length = prop_oneof![0..4_usize, 0..2_500_usize];
    let operate = (0..9_usize, length).prop_map(|(number, length)| Act::Operate { number, length });
    let act = prop_oneof![2 => attach, 3 => operate];
    prop::collection::vec((any::<bool>(), act), 0..40)
}

/// Returns the words of `rank` in act `at`.
fn words(rank: usize, at: usize, shared: usize, count: usize) -> Vec<u32> {
    let word = |word: usize| at * 1_000 + word + if word < shared { 0 } else { rank << 20 };
    (0..count).map(|n| word(n) as u32).collect()
}

fn operate(member: &mut dyn Collective, number: usize, length: usize) {
    let (rank, size) = (member.rank(), member.size());
    let (floats, words) = (vec![1.5; length], vec![7; length]);
    let done = match number {
        0 => member.all_reduce_sum(&mut floats.clone()),
        1 => {
            let length = length.min(member.sum_capacity());
            member.sum_parts(length).map(|_| ())
        }
        2 => {
            let (data, mut own) = (floats.repeat(size), vec![0.0; length]);
            member.reduce_scatter_sum(&data, &shares(size, length), &mut own)
        }
        3 => member.all_gather(&floats, &vec![length; size], &mut floats.repeat(size)),
        4 => member.exchange(&words, &mut words.repeat(size)),
        5 => {
            let mut recv = floats.repeat(if rank == 0 { size } else { 0 });
            member.gather(&floats, first_owns(&vec![length; size]), &mut recv)
        }
        6 => member.broadcast(length % size, &mut words.clone()),
        7 => member.barrier(),
        _ => member.split(0).map(|_| ()),
    };
    done.expect("all do the same");
}

/// Expected words of one group: the act that attached waiting words, and the act whose words
/// arrived last.
#[derive(Default, Clone, Copy)]
struct Account {
    waits: Option<(usize, usize, usize)>,
    arrived: Option<(usize, usize, usize)>,
}

impl Account {
    fn act(&mut self, at: usize, act: Act, size: usize) {
        match act {
            Act::Attach { shared, count } => self.waits = Some((at, shared, count)),
            Act::Operate { .. } => {}
        }
        if size == 1 || matches!(act, Act::Operate { .. }) {
            self.arrived = self.waits.take().or(self.arrived);
        }
    }

    fn check(&self, group: &dyn Collective) {
        let size = group.size();
        let shown = self.arrived.filter(|_| self.waits.is_none());
        let Some((at, shared, count)) = shown else {
            let mut all = [u32::MAX; 3];
            assert!(!group.attached(&mut all), "nothing is there to see");
            return assert_eq!(all, [u32::MAX; 3]);
        };
        let expected: Vec<u32> = (0..size)
            .flat_map(|rank| words(rank, at, shared, count))
            .collect();
        let mut all = vec![u32::MAX; size * count];
        for _ in 0..2 {
            assert!(group.attached(&mut all), "it has travelled");
            assert_eq!(all, expected);
        }
    }
}

/// Runs `script` in the group of all ranks and in groups of every other rank.
pub fn equals_the_account(script: &[(bool, Act)], members: Members) {
    on_threads(members, |mut member| {
        let half = member.split(member.rank() as u32 % 2).expect("split");
        let mut groups = [half, member];
        let mut accounts = [Account::default(); 2];
        for (at, (everybody, act)) in script.iter().enumerate() {
            let which = usize::from(*everybody);
            let group = &mut *groups[which];
            match *act {
                Act::Attach { shared, count } => {
                    let own = words(group.rank(), at, shared, count);
                    group.attach(shared, &own).expect("it fits");
                }
                Act::Operate { number, length } => operate(group, number, length),
            }
            accounts[which].act(at, *act, group.size());
            for (account, group) in accounts.iter().zip(&groups) {
                account.check(&**group);
            }
        }
    });
}

/// Attachment of a rank: the number of shared words, and the words.
type Brought = Option<(usize, &'static [u32])>;

const LONG: &[u32] = &[3; ATTACHED_WORDS];

/// Attachments of rank 2, and of the others, that don't agree.
const DIFFERENT: [(Brought, Brought); 7] = [
    (Some((2, &[1, 2, 3])), Some((2, &[1, 9, 3]))),
    (Some((1, &[1, 2, 3])), Some((2, &[1, 2, 3]))),
    (Some((1, &[1, 2])), Some((1, &[1, 2, 0]))),
    (Some((0, LONG)), Some((0, &[3]))),
    (None, Some((0, &[0]))),
    (Some((64, LONG)), None),
    (Some((64, LONG)), Some((1, &[4]))),
];

/// Every rank is told its own words and those of a rank that differs, before the operation has
/// any result. This holds with a payload and without one.
pub fn different_words_are_found(group: impl Fn() -> Members) {
    for (number, (odd, others)) in DIFFERENT.into_iter().enumerate() {
        for length in [0, 5, 2_500] {
            let brings = |rank| if rank == 2 { odd } else { others };
            let errors = on_threads(group(), |member| attach_and_sum(member, brings, length));
            for (reporter, error) in errors.iter().enumerate() {
                let CollectiveError::Attached {
                    rank,
                    ours,
                    shared,
                    peer,
                    theirs,
                    their_shared,
                    operation,
                } = error
                else {
                    panic!("{number} of {length} on rank {reporter}: {error}");
                };
                assert_eq!(*rank, reporter);
                assert_eq!(*peer == 2, reporter != 2, "{error}");
                let brought = |rank| brings(rank).unwrap_or((0, &[]));
                assert_eq!((*shared, &ours[..]), brought(reporter));
                assert_eq!((*their_shared, &theirs[..]), brought(*peer));
                assert_eq!((operation.sequence, operation.length), (1, length as u64));
            }
        }
    }
}

fn attach_and_sum(
    mut member: Box<dyn Collective>,
    brings: impl Fn(usize) -> Brought,
    length: usize,
) -> CollectiveError {
    let mut data = vec![1.0; length];
    member.all_reduce_sum(&mut data).expect("nothing attached");
    if let Some((shared, words)) = brings(member.rank()) {
        member.attach(shared, words).expect("it fits");
    }
    let before = data.clone();
    let error = member.all_reduce_sum(&mut data).expect_err("they differ");
    assert_eq!(data, before, "nobody has added what others brought");
    let again = member.attach(0, &[1]).expect_err("the group is broken");
    assert_eq!(error, again);
    error
}

/// The error's text, for people.
pub fn the_error_says_what_differs(group: impl Fn() -> Members) {
    let errors = on_threads(group(), |mut member| {
        let rank = member.rank() as u32;
        member.attach(2, &[17, 40 + rank, 99]).expect("it fits");
        member.barrier().expect_err("they differ").to_string()
    });
    assert_eq!(
        errors[0],
        "ranks diverged: rank 0 brings 3 words with [17, 40] shared to barrier as operation 0, \
         and rank 1 brings 3 words with [17, 41] shared; what is shared must be equal"
    );
    let errors = on_threads(group(), |mut member| {
        if member.rank() == 0 {
            member.attach(0, &[5]).expect("it fits");
        }
        member.barrier().expect_err("one has none").to_string()
    });
    assert!(errors[1].contains("rank 1 brings no words"), "{errors:?}");
}

/// Ranks that run different operations get an error about their words if both attached
/// different words, since these show the cause. Otherwise they get an error about the
/// operations.
pub fn words_tell_why_operations_differ(group: impl Fn() -> Members) {
    const SAME: Brought = Some((1, &[1, 2]));
    for (first, second, of_words) in [
        (SAME, Some((1, &[3, 2][..])), true),
        (SAME, Some((1, &[1, 2, 3][..])), true),
        (SAME, Some((1, &[1, 9][..])), false),
        (SAME, None, false),
        (None, None, false),
    ] {
        let errors = on_threads(group(), |mut member| {
            let brought = [first, second][member.rank()];
            if let Some((shared, words)) = brought {
                member.attach(shared, words).expect("it fits");
            }
            let ended = match member.rank() {
                0 => member.barrier(),
                _ => member.exchange(&[0; 4], &mut [0; 8]),
            };
            ended.expect_err("operations differ")
        });
        for error in errors {
            let told = matches!(error, CollectiveError::Attached { .. });
            assert_eq!(told, of_words, "{error}");
            assert!(told || matches!(error, CollectiveError::Mismatch { .. }));
        }
    }
}

/// Attaching is no operation: peers do not count it, and the next operation without words has
/// the next number.
pub fn no_operation_is_added(members: Members) {
    let sequences = on_threads(members, |mut member| {
        for round in 0..5 {
            member.attach(1, &[round; 45]).expect("it fits");
            member.all_reduce_sum(&mut [1.0; 2_500]).expect("a sum");
            member.barrier().expect("without words");
        }
        let error = match member.rank() {
            0 => member.barrier(),
            _ => member.broadcast(0, &mut []),
        };
        match error.expect_err("operations differ") {
            CollectiveError::Mismatch { ours, theirs, .. } => (ours.sequence, theirs.sequence),
            other => panic!("{other}"),
        }
    });
    assert_eq!(sequences, [(10, 10); 2]);
}

/// Too many words, or more shared words than words, break the group at once.
pub fn what_does_not_fit_is_refused(group: impl Fn() -> Members) {
    let wrong: [(usize, &[u32]); 3] = [(0, &[]), (3, &[1, 2]), (0, &[0; ATTACHED_WORDS + 1])];
    for (shared, words) in wrong {
        for mut member in group() {
            let error = member.attach(shared, words).expect_err("it does not fit");
            let refused = matches!(&error, CollectiveError::Argument { rank, reason }
                if *rank == member.rank() && reason.contains("1 to 64"));
            assert!(refused, "{error}");
            assert_eq!(member.barrier(), Err(error), "the group is broken");
        }
    }
}

/// Returns the same members, each with words that wait for an operation.
pub fn attaching(mut members: Members) -> Members {
    for member in &mut members {
        let own = [1, member.rank() as u32];
        member.attach(1, &own.repeat(20)[..39]).expect("it fits");
    }
    members
}

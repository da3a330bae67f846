//! Ranks that run the shared operations of several groups in different orders.

use lockstep_collective::{Collective, CollectiveError, Kind, Operation};

use crate::support::{Members, on_threads};

type Run = fn(&mut dyn Collective, &mut dyn Collective) -> Result<(), CollectiveError>;

/// The operations of ranks in the first group and in their pairs.
struct Stray {
    /// Operations of all ranks but one.
    others: Run,
    /// Operations of the one rank that goes astray.
    stray: Run,
    /// The operations in which the astray rank and its peer wait for each other, the peer's
    /// first. Each is true if it runs in the first group.
    meet: [(Kind, bool); 2],
}

const STRAYS: [Stray; 3] = [
    // The rank skips an operation of all ranks.
    Stray {
        others: |world, pair| world.barrier().and_then(|()| pair.broadcast(1, &mut [7])),
        stray: |_, pair| pair.broadcast(1, &mut [7]),
        meet: [(Kind::Barrier, true), (Kind::Broadcast, false)],
    },
    // The rank misses an operation of its pair.
    Stray {
        others: |world, pair| {
            pair.broadcast(0, &mut [7])?;
            world.exchange(&[7], &mut [0; 4])
        },
        stray: |world, _| world.exchange(&[7], &mut [0; 4]),
        meet: [(Kind::Broadcast, false), (Kind::Exchange, true)],
    },
    // The rank skips an operation of several transfers.
    Stray {
        others: |world, pair| {
            world.all_reduce_sum(&mut [0.0; 2_500])?;
            pair.all_reduce_sum(&mut [0.0; 2_400])
        },
        stray: |_, pair| pair.all_reduce_sum(&mut [0.0; 2_400]),
        meet: [(Kind::AllReduceSum, true), (Kind::AllReduceSum, false)],
    },
];

/// One of four ranks is in its pair while the others are in the first group, or the reverse.
/// The rank and its peer name each other's operations. The others learn that a rank left, and
/// no rank waits for the deadline.
pub fn waits_in_different_groups_are_found(group: impl Fn() -> Members) {
    for Stray {
        others,
        stray,
        meet,
    } in &STRAYS
    {
        for one in 0..4 {
            let errors = on_threads(group(), |mut world| {
                let rank = world.rank();
                let mut pair = world.split(rank as u32 / 2).expect("split");
                for _ in 0..3 {
                    pair.barrier().expect("the same in all pairs");
                }
                world.barrier().expect("the same on all ranks");
                let run = if rank == one { stray } else { others };
                let ended = run(&mut *world, &mut *pair);
                // In pairs that no rank left, the others may come further.
                ended
                    .and_then(|()| world.barrier())
                    .expect_err("one is astray")
            });
            check_pair(&errors, one, *meet);
            for (rank, error) in errors
                .iter()
                .enumerate()
                .filter(|(rank, _)| rank / 2 != one / 2)
            {
                let left =
                    matches!(error, CollectiveError::PeerLeft { peer, .. } if peer / 2 == one / 2);
                assert!(left, "rank {rank}, {one} astray: {error}");
            }
        }
    }
}

/// Checks that rank `one` and its peer in the pair name each other's operations.
fn check_pair(errors: &[CollectiveError], one: usize, [(kind, first), meet]: [(Kind, bool); 2]) {
    let of = |reporter: usize| -> (Operation, Operation) {
        match &errors[reporter] {
            CollectiveError::Mismatch {
                rank,
                ours,
                peer,
                theirs,
            } if (*rank, *peer) == (reporter, reporter ^ 1) => (*ours, *theirs),
            other => panic!("rank {reporter}, {one} astray: {other}"),
        }
    };
    let (theirs, ours) = of(one ^ 1);
    assert_eq!(of(one), (ours, theirs));
    assert_eq!((theirs.kind, theirs.group == 0), (kind, first));
    assert_eq!((ours.kind, ours.group == 0), meet);
}

/// Four ranks wait in a circle of four groups, of which no two share two ranks. The deadline
/// ends it, and each rank names the rank that it waited for.
pub fn wider_circles_end_by_the_deadline(members: Members) {
    let errors = on_threads(members, |mut world| {
        let rank = world.rank();
        let mut pair = world.split(rank as u32 / 2).expect("split");
        let mut other = world.split(rank as u32 % 2).expect("split");
        // Rank 0 waits for 1, 1 for 3, 3 for 2, and 2 for 0.
        let group = if rank == 0 || rank == 3 {
            &mut pair
        } else {
            &mut other
        };
        group.barrier().expect_err("they wait in a circle")
    });
    for (reporter, error) in errors.iter().enumerate() {
        let next = [1, 3, 0, 2][reporter];
        let (CollectiveError::Timeout {
            rank,
            missing: peer,
            ..
        }
        | CollectiveError::PeerLeft { rank, peer, .. }) = error
        else {
            panic!("rank {reporter}: {error}");
        };
        assert_eq!((*rank, *peer), (reporter, next), "{error}");
    }
    let late = |error: &CollectiveError| matches!(error, CollectiveError::Timeout { .. });
    assert!(errors.iter().any(late));
}

/// Pseudo-random numbers, equal for equal seeds.
struct Numbers(u64);

impl Numbers {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Runs `steps` operations in overlapping groups of four ranks, in one order, with different
/// pauses. No rank ever takes another one for astray.
pub fn any_order_that_all_share_is_right(members: Members, seed: u64, steps: usize) {
    on_threads(members, |mut world| {
        let rank = world.rank();
        let colors: [fn(usize) -> u32; 5] = [
            |rank| rank as u32 / 2,
            |rank| rank as u32 % 2,
            |rank| u32::from(rank == 3),
            |rank| u32::from(rank == 0),
            |_| 0,
        ];
        let split = |color: &fn(usize) -> u32| world.split(color(rank)).expect("split");
        let mut groups: Vec<_> = colors.iter().map(split).collect();
        let part = groups[2].split(rank as u32 / 2).expect("split");
        groups.push(part);
        groups.push(world);
        let mut schedule = Numbers::of(seed);
        let mut pauses = Numbers::of(seed ^ ((rank as u64 + 1) << 32));
        for step in 0..steps {
            let number = schedule.below(7) as usize;
            let (kind, length, some) = (schedule.below(3), schedule.below(40), schedule.below(4));
            // Some steps are run only by one of the parts.
            if some == 0 && number < 2 && colors[number](rank) == 0 {
                continue;
            }
            let group = &mut groups[number];
            let (own, size) = (group.rank(), group.size());
            pause(&mut pauses);
            match kind {
                0 => group.barrier().expect("the same order"),
                1 => {
                    let mut data = vec![(step + own) as f32; length as usize];
                    group.all_reduce_sum(&mut data).expect("the same order");
                    let sum = (size * step + size * (size - 1) / 2) as f32;
                    assert!(data.iter().all(|x| *x == sum), "step {step}");
                }
                _ => {
                    let mut all = vec![0; size];
                    let word = (step * 8 + own) as u32;
                    group.exchange(&[word], &mut all).expect("the same order");
                    assert_eq!(all[own], word);
                    assert!(all.iter().all(|word| *word as usize / 8 == step));
                }
            }
        }
    });
}

/// Pauses: mostly not at all, otherwise as long as a rank spins, or by giving its turn away.
fn pause(numbers: &mut Numbers) {
    match numbers.below(16) {
        0 => (0..numbers.below(4_000)).for_each(|_| std::hint::spin_loop()),
        1 => std::thread::yield_now(),
        _ => {}
    }
}

//! Ranks whose data goes from GPU to GPU and that differ, or of which one does not come:
//! NCCL itself would wait for ever. Each ends by the deadline, and knows why.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use lockstep_backend::{
    Axis, Backend, BackendError, Exchanged, Holds, PassKey, PassPlan, PassRecords,
};
use lockstep_backend_cuda::{
    CollectiveOptions, CudaBackend, CudaOptions, CudaPasses, CudaTensor, Gpu,
};
use lockstep_collective::{CollectiveError, Stall};
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{PATIENCE, brought, tensor, with_options};
use crate::support::options;

/// How long data may be on its way.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long after that a rank may end.
const LATE: Duration = Duration::from_secs(2);
/// The rank that does something else.
const ODD: usize = 1;

/// Options of a rank that exchanges by NCCL, and gives up after so long.
pub fn nccl(dtype: Dtype, patience: Duration) -> CudaOptions {
    CudaOptions {
        graphs: vec![1, 2],
        collectives: CollectiveOptions {
            backend: CollectiveBackend::Nccl,
            joining: PATIENCE,
            patience,
            ..CollectiveOptions::default()
        },
        ..options(dtype)
    }
}

/// What a rank asks for.
#[derive(Debug, Clone, Copy)]
pub enum Ask {
    /// Sums of so many floats, one after the other.
    Sums(&'static [usize]),
    /// So many rows of each rank.
    Gather(&'static [usize]),
    /// A pass of so many tokens that was recorded by all.
    Pass(usize),
}

/// What ranks do that differ: all others, and the odd one.
pub const DIFFERENT: [(&str, Ask, Ask); 7] = [
    ("count", Ask::Sums(&[4]), Ask::Sums(&[5])),
    ("kind", Ask::Sums(&[4]), Ask::Gather(&[4, 4, 4, 4])),
    ("order", Ask::Sums(&[4, 6, 8]), Ask::Sums(&[6, 4, 8])),
    ("one less", Ask::Sums(&[4, 6, 8]), Ask::Sums(&[4, 8])),
    ("one more", Ask::Sums(&[4, 6]), Ask::Sums(&[4, 4, 6])),
    (
        "root",
        Ask::Gather(&[1, 0, 0, 0]),
        Ask::Gather(&[0, 1, 0, 0]),
    ),
    ("key", Ask::Pass(1), Ask::Pass(2)),
];

impl Ask {
    /// Asks for it, and waits.
    pub fn run(self, gpu: &mut CudaBackend, recorded: &mut Recorded) -> Result<(), BackendError> {
        let (rank, size) = gpu.group(Axis::World);
        // Giving memory back waits for the device, too.
        let mut kept = Vec::new();
        match self {
            Self::Sums(lens) => {
                let make = |len: &usize| tensor(gpu, &brought(rank, *len), 1, Holds::Sum);
                kept.extend(lens.iter().map(make));
                for x in &mut kept {
                    gpu.all_reduce(Axis::World, x)?;
                }
            }
            Self::Gather(counts) => {
                let counts = &counts[..size];
                let x = tensor(gpu, &brought(rank, 4), 1, Holds::Operand);
                let mut out = gpu.tensor(counts.iter().sum(), 1, Holds::Operand)?;
                gpu.all_gather_rows(Axis::World, &x, 0, counts, &mut out)?;
                kept.extend([x, out]);
            }
            Self::Pass(tokens) => {
                let x = &mut recorded.sums[tokens - 1];
                let mut work = |gpu: &mut CudaBackend| gpu.all_reduce(Axis::World, x);
                gpu.pass(&mut recorded.passes, key(tokens), &mut work)?;
            }
        }
        gpu.arrive()
    }
}

fn key(tokens: usize) -> PassKey {
    PassKey {
        requests: tokens,
        tokens,
        max_q_len: tokens,
    }
}

/// Passes that were recorded, of one token and of two, and what they sum.
pub struct Recorded {
    passes: CudaPasses,
    sums: [CudaTensor; 2],
}

/// As all ranks record them.
pub fn recorded(gpu: &mut CudaBackend) -> Result<Recorded, BackendError> {
    let (rank, _) = gpu.group(Axis::World);
    let plan = |tokens| PassPlan {
        key: key(tokens),
        exchanges: Exchanged::sum(Axis::World, 3 * tokens)
            .into_iter()
            .collect(),
    };
    let mut recorded = Recorded {
        passes: CudaPasses::planned(vec![plan(1), plan(2)]),
        sums: [1, 2].map(|tokens| tensor(gpu, &brought(rank, 3 * tokens), 1, Holds::Sum)),
    };
    for tokens in [2, 1] {
        Ask::Pass(tokens).run(gpu, &mut recorded)?;
    }
    Ok(recorded)
}

/// What ranks on GPUs of their own come to, and how long that takes from a moment that
/// all share; nothing where there are fewer.
fn ranks(
    count: usize,
    odd: (Dtype, Duration),
    work: impl Fn(&mut CudaBackend, usize, &mut Recorded) -> Result<(), BackendError>
    + Send
    + Sync
    + 'static,
) -> Vec<(CollectiveError, Duration)> {
    if Gpu::count().unwrap() < count {
        return Vec::new();
    }
    let all = Arc::new(Barrier::new(count));
    let options = move |rank| {
        let usual = (Dtype::Float32, DEADLINE);
        let (dtype, patience) = if rank == ODD { odd } else { usual };
        nccl(dtype, patience)
    };
    with_options(options, (count, 1), move |gpu, rank| {
        let mut recorded = recorded(gpu).unwrap();
        all.wait();
        let start = Instant::now();
        let error = match work(gpu, rank, &mut recorded) {
            Err(BackendError::Collective(error)) => *error,
            other => panic!("{other:?}"),
        };
        let took = start.elapsed();
        // Both ways have ended, and go on no more.
        gpu.control(Axis::World).barrier().unwrap_err();
        Ask::Sums(&[4]).run(gpu, &mut recorded).unwrap_err();
        // Nobody leaves before the others have seen why they wait.
        all.wait();
        (error, took)
    })
}

/// Whoever gives up first, each rank says what it waits for and what another one does.
fn name_both_sides(what: &str, found: Vec<(CollectiveError, Duration)>) {
    for (rank, (error, took)) in found.into_iter().enumerate() {
        let CollectiveError::Stalled {
            rank: reports,
            stall:
                Stall::Diverged {
                    peer,
                    last,
                    their_last,
                    ours,
                    theirs,
                },
            ..
        } = &error
        else {
            panic!("{what}: {error}");
        };
        assert_eq!(*reports, rank, "{what}");
        // The odd one differs from all others, and they from it alone.
        assert_eq!(*peer, if rank == ODD { 0 } else { ODD }, "{what}: {error}");
        let same = ours == theirs && last == their_last;
        assert_eq!(same, what == "order", "{what}: {error}");
        assert!(took < DEADLINE + LATE, "{what}: {took:?}");
    }
}

#[test]
fn ranks_that_ask_for_different_things_name_both_sides() {
    for count in [2, 4] {
        for (what, ours, theirs) in DIFFERENT {
            let found = ranks(
                count,
                (Dtype::Float32, DEADLINE),
                move |gpu, rank, recorded| {
                    let ask = if rank == ODD { theirs } else { ours };
                    ask.run(gpu, recorded)
                },
            );
            name_both_sides(what, found);
        }
        // Of another type.
        let found = ranks(count, (Dtype::Bfloat16, DEADLINE), |gpu, _, recorded| {
            Ask::Gather(&[2; 4]).run(gpu, recorded)
        });
        name_both_sides("type", found);
    }
}

/// It waits for something that is not its peers' data, or for nothing.
#[test]
fn a_rank_that_does_not_come_is_named_by_all() {
    for (count, comes) in [(2, false), (4, false), (4, true)] {
        let all = Arc::new(Barrier::new(count));
        let patient = (Dtype::Float32, 10 * DEADLINE);
        let found = ranks(count, patient, move |gpu, rank, recorded| {
            if rank == ODD {
                if comes {
                    // One that goes on later than the others can wait for it.
                    let mut x = tensor(gpu, &[1.0], 1, Holds::Sum);
                    gpu.all_reduce(Axis::World, &mut x)?;
                }
                all.wait();
                return Ask::Sums(&[1, 1]).run(gpu, recorded);
            }
            let done = Ask::Sums(&[1, 1]).run(gpu, recorded);
            all.wait();
            done
        });
        for (rank, (error, took)) in found.into_iter().enumerate() {
            if rank == ODD {
                continue;
            }
            let begun = 2 + u64::from(comes);
            let CollectiveError::Stalled {
                rank: reports,
                stall: Stall::Missing {
                    peer, theirs, ours, ..
                },
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!((*reports, *peer), (rank, ODD), "{error}");
            assert_eq!((*theirs, *ours), (begun, 4), "{error}");
            assert!(took < DEADLINE + LATE, "{took:?}");
        }
    }
}

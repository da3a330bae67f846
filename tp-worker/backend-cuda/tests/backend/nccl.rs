//! Faults of ranks that exchange data from GPU to GPU. NCCL itself would wait for ever.

use std::ffi::CStr;
use std::sync::mpsc;
use std::time::Instant;

use lockstep_backend::{
    Axis, BackendError, Exchange as _, Holds, Memory as _, Passes as _, WeightFormat,
};
use lockstep_backend_cuda::{CudaBackend, Gpu};
use lockstep_collective::CollectiveError;
use lockstep_fake_cuda::calls;
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{PATIENCE, brought, by_way, summed, tensor, values};
use crate::support::gpu;

/// Runs `work` on ranks with GPUs of their own, and returns the results; none if there are
/// fewer GPUs.
fn some<T: Send + 'static>(
    count: usize,
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    match Gpu::count().unwrap() < count {
        true => Vec::new(),
        false => by_way(CollectiveBackend::Nccl, (count, 1), Dtype::Float32, work),
    }
}

fn two<T: Send + 'static>(
    work: impl Fn(&mut CudaBackend, usize) -> T + Send + Sync + 'static,
) -> Option<[T; 2]> {
    some(2, work).try_into().ok()
}

/// Sums `len` floats over the ranks, and waits for the result.
fn sum(gpu: &mut CudaBackend, rank: usize, len: usize) -> Result<Vec<f32>, BackendError> {
    let mut x = tensor(gpu, &brought(rank, len), 1, Holds::Sum);
    gpu.all_reduce(Axis::World, &mut x)?;
    gpu.arrive()?;
    Ok(values(gpu, &x))
}

fn cause(found: Result<Vec<f32>, BackendError>) -> CollectiveError {
    match found {
        Err(BackendError::Collective(error)) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn words_do_not_ride_on_data_that_no_host_sees() {
    let found = two(|gpu, rank| {
        assert!(!gpu.words_ride_on_data());
        let about = gpu.describe(WeightFormat::Float);
        assert!(about.contains("NCCL"), "{about}");
        sum(gpu, rank, 5).unwrap()
    });
    for found in found.into_iter().flatten() {
        assert_eq!(found, summed(0..2, 5));
    }
}

/// Memory that NCCL takes at the first use of an operation is taken before memory is measured
/// and passes are recorded.
#[test]
fn every_kind_is_used_as_ranks_start() {
    const KINDS: [&CStr; 6] = [
        c"ncclAllReduce",
        c"ncclBroadcast",
        c"ncclAllGather",
        c"ncclReduceScatter",
        c"ncclSend",
        c"ncclRecv",
    ];
    for (ranks, dp_size) in [(2, 1), (2, 2), (4, 2)] {
        if Gpu::count().unwrap() < ranks {
            continue;
        }
        let asked = by_way(
            CollectiveBackend::Nccl,
            (ranks, dp_size),
            Dtype::Float32,
            |_, _| KINDS.map(calls),
        );
        for (rank, asked) in asked.into_iter().enumerate() {
            let leads = rank % (ranks / dp_size) == 0;
            // Number of groups of several ranks.
            let groups = if ranks > dp_size { dp_size } else { 1 };
            let sent = dp_size - usize::from(leads);
            let received = if leads { ranks - 1 } else { 0 };
            let expected = [groups, groups, 1, 1, sent, received].map(|count| count as u64);
            for (kind, (asked, expected)) in asked.into_iter().zip(expected).enumerate() {
                let Some(asked) = asked else { continue };
                assert_eq!(asked, expected, "{:?}, {rank} of {ranks}", KINDS[kind]);
            }
        }
    }
}

/// The rank is named long before the deadline.
#[test]
fn a_rank_that_leaves_is_named() {
    let found = two(|gpu, rank| {
        let start = Instant::now();
        let error = (rank == 0).then(|| cause(sum(gpu, rank, 4)));
        (error, start.elapsed())
    });
    for (error, took) in found.into_iter().flatten().take(1) {
        assert_eq!(error, Some(CollectiveError::Deserted { rank: 0, peer: 1 }));
        assert!(took < PATIENCE, "{took:?}");
    }
}

/// The abort comes through the handle of the host's group, which ends both ways. The peers are
/// told.
#[test]
fn a_rank_that_is_aborted_waits_no_more() {
    for count in [2, 4] {
        let found = some(count, |gpu, rank| {
            let start = Instant::now();
            let found = match rank {
                1 => {
                    gpu.control(Axis::World).abort_handle().abort();
                    let ended = std::iter::repeat_with(|| gpu.arrive()).find(Result::is_err);
                    ended.unwrap().map(|()| Vec::new())
                }
                _ => sum(gpu, rank, 4),
            };
            (cause(found), start.elapsed())
        });
        for (rank, (error, took)) in found.into_iter().enumerate() {
            let expected = match rank {
                1 => CollectiveError::Aborted {
                    rank,
                    missing: None,
                },
                _ => CollectiveError::Deserted { rank, peer: 1 },
            };
            assert_eq!(error, expected);
            assert!(took < PATIENCE, "{took:?}");
        }
    }
}

/// After an abort, the stream's memory looks like data.
#[test]
fn nothing_is_read_of_a_sum_that_was_ended() {
    let found = two(|gpu, rank| {
        let mut x = tensor(gpu, &brought(rank, 4 + rank), 1, Holds::Sum);
        gpu.all_reduce(Axis::World, &mut x).unwrap();
        let mut space = Vec::new();
        let widths = [x.width()];
        let owners = lockstep_backend::Owners {
            widths: &widths,
            rows: &[0..x.rows(); 1],
        };
        let read = gpu.gather_to_host(Axis::Alone, &x, owners, &mut space);
        read.map(<[f32]>::to_vec)
    });
    for found in found.into_iter().flatten() {
        cause(found);
    }
}

#[test]
fn ranks_that_share_a_gpu_can_not_be_made_to_use_nccl() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real machine may have many GPUs.
    }
    let (ranks, found) = (Gpu::count().unwrap() + 1, mpsc::channel());
    let sender = found.0;
    let groups = lockstep_collective::local_group(ranks)
        .into_iter()
        .enumerate();
    let threads: Vec<_> = groups
        .map(|(rank, group)| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut options = crate::support::options(Dtype::Float32);
                options.ordinal = rank % (ranks - 1);
                options.collectives.backend = CollectiveBackend::Nccl;
                let error = CudaBackend::new(&options, Box::new(group)).err();
                sender.send(error.unwrap().to_string()).unwrap();
            })
        })
        .collect();
    drop(sender);
    for error in found.1 {
        let last = format!("rank {} shares a GPU", ranks - 1);
        assert!(
            error.contains(&last) && error.contains("--collective-backend"),
            "{error}"
        );
    }
    threads.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn a_rank_alone_asks_for_no_collective() {
    let mut gpu = gpu(Dtype::Float32);
    let mut x = tensor(&mut gpu, &[1.0, 2.0], 1, Holds::Sum);
    gpu.all_reduce(Axis::World, &mut x).unwrap();
    assert_eq!(values(&mut gpu, &x), [1.0, 2.0]);
    for function in [
        c"ncclGetUniqueId",
        c"ncclCommInitRankConfig",
        c"ncclAllReduce",
    ] {
        assert!(matches!(
            lockstep_fake_cuda::calls(function),
            None | Some(0)
        ));
    }
}

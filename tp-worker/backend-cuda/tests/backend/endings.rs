//! How ranks whose data goes from GPU to GPU leave each other. To end a communicator of
//! NCCL takes as long as graphs, the device and the other ranks do: nobody here may wait
//! for that without an end.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use lockstep_backend::{Axis, Backend, BackendError, Groups, Holds};
use lockstep_backend_cuda::{CudaBackend, CudaOptions, Gpu};
use lockstep_collective::{CollectiveError, Stall, local_group};
use lockstep_types::Dtype;

use crate::ranks::{brought, tensor};
use crate::stalls::{Ask, nccl, recorded};
use crate::support::other_gpus;

/// How long data may be on its way.
const DEADLINE: Duration = Duration::from_secs(1);
/// As long as nobody would wait.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than ranks take to come, to fail and to leave.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs `work` on ranks with GPUs of their own, each with a backend that is its own and
/// the patience that `patience` says; all of them have to end.
fn ranks_end(
    (ranks, dp_size): (usize, usize),
    patience: impl Fn(usize) -> Duration,
    work: impl Fn(CudaBackend, usize) + Send + Sync + 'static,
) {
    if Gpu::count().unwrap() < ranks {
        return;
    }
    let _turn = other_gpus();
    let (work, (ends, ended)) = (Arc::new(work), channel());
    for (rank, collective) in local_group(ranks).into_iter().enumerate() {
        let (work, ends) = (work.clone(), ends.clone());
        let options = CudaOptions {
            ordinal: rank,
            ..nccl(Dtype::Float32, patience(rank))
        };
        // One that hangs is left behind.
        std::thread::spawn(move || {
            let groups = Groups::form(Box::new(collective), dp_size).unwrap();
            work(CudaBackend::new(&options, groups).unwrap(), rank);
            ends.send(()).unwrap();
        });
    }
    drop(ends);
    for _ in 0..ranks {
        ended.recv_timeout(LIMIT).expect("every rank ends");
    }
}

fn cause(done: Result<(), BackendError>) -> CollectiveError {
    match done {
        Err(BackendError::Collective(error)) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_backend_may_go_before_the_graphs_that_it_recorded() {
    ranks_end(
        (2, 1),
        |_| HOUR,
        |mut gpu, rank| {
            let mut recorded = recorded(&mut gpu).unwrap();
            if rank == 0 {
                let error = cause(Ask::Sums(&[4]).run(&mut gpu, &mut recorded));
                assert_eq!(error, CollectiveError::Deserted { rank: 0, peer: 1 });
            }
            drop(gpu);
        },
    );
}

#[test]
fn a_rank_leaves_while_others_stay() {
    let left = Barrier::new(2);
    ranks_end(
        (2, 1),
        |_| HOUR,
        move |gpu, rank| {
            let stays = (rank == 0).then_some(gpu);
            left.wait();
            drop(stays);
        },
    );
}

#[test]
fn a_rank_that_gives_up_tells_the_others_before_they_do() {
    let both = Barrier::new(2);
    let patience = |rank| if rank == 0 { DEADLINE } else { HOUR };
    ranks_end((2, 1), patience, move |mut gpu, rank| {
        let mut recorded = recorded(&mut gpu).unwrap();
        let ask = Ask::Sums(if rank == 0 { &[4] } else { &[5] });
        let error = cause(ask.run(&mut gpu, &mut recorded));
        let diverged = matches!(
            error,
            CollectiveError::Stalled {
                stall: Stall::Diverged { .. },
                ..
            }
        );
        assert!(diverged, "{error}");
        both.wait();
        Ask::Sums(&[4]).run(&mut gpu, &mut recorded).unwrap_err();
    });
}

/// The device is busy with the sum that does not end, whichever communicator goes first.
#[test]
fn all_communicators_of_a_rank_end_together() {
    let all = Barrier::new(4);
    ranks_end(
        (4, 2),
        |_| DEADLINE,
        move |mut gpu, rank| {
            if rank != 1 {
                let mut x = tensor(&mut gpu, &brought(rank, 4), 1, Holds::Sum);
                let asked = gpu.all_reduce(Axis::Attention, &mut x);
                let done = asked.and_then(|()| gpu.arrive());
                if rank == 0 {
                    let error = cause(done);
                    let missing = matches!(
                        error,
                        CollectiveError::Stalled {
                            stall: Stall::Missing { peer: 1, .. },
                            ..
                        }
                    );
                    assert!(missing, "{error}");
                } else {
                    done.unwrap();
                }
            }
            all.wait();
        },
    );
}

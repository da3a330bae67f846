//! Ends of ranks that exchange data from GPU to GPU. The end of an NCCL communicator takes as
//! long as graphs, the device and the other ranks do. No rank here may wait for that without a
//! limit.

use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use lockstep_backend::{
    Axis, BackendError, Exchange as _, Groups, Holds, Memory as _, Passes as _, WeightFormat,
};
use lockstep_backend_cuda::{CudaBackend, CudaError, CudaOptions, Gpu};
use lockstep_collective::{CollectiveError, Stall, local_group};
use lockstep_types::{CollectiveBackend, Dtype};

use crate::ranks::{brought, tensor, values};
use crate::stalls::{Ask, nccl, recorded};
use crate::support::other_gpus;

/// Longest time for which data may be on its way.
const DEADLINE: Duration = Duration::from_secs(1);
/// Longer than anybody would wait.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than ranks take to come, to fail and to leave.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs `work` on ranks with GPUs of their own, each with a backend made of `options`. All
/// ranks have to end.
fn ranks_end(
    group: (usize, usize),
    options: impl Fn(usize) -> CudaOptions,
    work: impl Fn(CudaBackend, usize) + Send + Sync + 'static,
) {
    starts_end(group, options, move |made, rank| work(made.unwrap(), rank));
}

/// Does the same as [`ranks_end`], but gives `work` the result of making the backend.
fn starts_end(
    (ranks, dp_size): (usize, usize),
    options: impl Fn(usize) -> CudaOptions,
    work: impl Fn(Result<CudaBackend, CudaError>, usize) + Send + Sync + 'static,
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
            ..options(rank)
        };
        // A rank that hangs is left behind.
        std::thread::spawn(move || {
            let groups = Groups::form(Box::new(collective), dp_size).unwrap();
            work(CudaBackend::new(&options, groups), rank);
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
        |_| nccl(Dtype::Float32, HOUR),
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
        |_| nccl(Dtype::Float32, HOUR),
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
    let patience = |rank| nccl(Dtype::Float32, if rank == 0 { DEADLINE } else { HOUR });
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

/// The device is busy with the endless sum, whichever communicator ends first.
#[test]
fn all_communicators_of_a_rank_end_together() {
    let all = Barrier::new(4);
    ranks_end(
        (4, 2),
        |_| nccl(Dtype::Float32, DEADLINE),
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

/// Number of NCCL operations of a rank at its start, if it does not lead its DP rank and there
/// is one DP rank.
pub const WARM_UP: usize = 5;

/// Variable with the case that a child process runs. The environment plants the fault there.
const CASE: &str = "TEST_ENDINGS";

/// Runs the case in a process with `variable` set, and expects success.
fn succeeds(case: &str, variable: (&str, &str)) {
    if !lockstep_fake_cuda::seed(1) {
        return; // Only the fake has planted faults.
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "endings::planted", "--include-ignored"]);
    command.env(CASE, case).env(variable.0, variable.1);
    let done = command.stdin(Stdio::null()).output().unwrap();
    let [out, err] = [done.stdout, done.stderr].map(|said| String::from_utf8(said).unwrap());
    assert!(done.status.success(), "{case}, {variable:?}: {out}{err}");
}

#[test]
fn a_call_that_does_not_return_is_ended() {
    let number = format!("1:{}", WARM_UP + 5);
    succeeds("stuck", ("FAKE_NCCL_STUCK", &number));
}

#[test]
fn ranks_that_do_not_come_through_their_start_are_named() {
    for number in [1, WARM_UP] {
        let number = format!("1:{number}");
        succeeds("start", ("FAKE_NCCL_STUCK", &number));
    }
}

/// The rank fails to join the group of all ranks, or the group of its DP rank after the others
/// have joined theirs.
#[test]
fn ranks_go_through_their_hosts_where_one_cannot_join() {
    for number in ["1:1", "1:2"] {
        succeeds("join", ("FAKE_NCCL_FAIL", number));
    }
}

/// A rank's first operations fail when they are asked for, or do not return. Its peers, which
/// wait for them, give up NCCL too.
#[test]
fn ranks_go_through_their_hosts_where_one_cannot_use_what_it_joined() {
    for variable in ["FAKE_NCCL_REFUSE", "FAKE_NCCL_STUCK"] {
        for number in [1, 3, WARM_UP] {
            let number = format!("1:{number}");
            succeeds("join", (variable, &number));
        }
    }
}

#[test]
fn a_way_that_was_asked_for_and_cannot_be_used_is_an_error() {
    succeeds("refused", ("FAKE_NCCL_REFUSE", "1:3"));
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn planted() {
    match std::env::var(CASE).as_deref() {
        Ok("stuck") => ranks_end(
            (2, 1),
            |_| nccl(Dtype::Float32, DEADLINE),
            |mut gpu, _| {
                let mut recorded = recorded(&mut gpu).unwrap();
                let error = cause(Ask::Sums(&[4]).run(&mut gpu, &mut recorded));
                let stalled = matches!(error, CollectiveError::Stalled { .. });
                let deserted = matches!(error, CollectiveError::Deserted { .. });
                assert!(stalled || deserted, "{error}");
            },
        ),
        Ok("start") => starts_end(
            (2, 1),
            |_| {
                let mut options = nccl(Dtype::Float32, DEADLINE);
                options.collectives.joining = LIMIT / 10;
                options
            },
            |made, rank| {
                let Some(CudaError::Peers(error)) = made.err() else {
                    panic!("rank {rank} has started");
                };
                let stalled = matches!(*error, CollectiveError::Stalled { .. });
                let deserted = matches!(*error, CollectiveError::Deserted { .. });
                assert!(stalled || deserted, "{error}");
            },
        ),
        Ok("refused") => starts_end(
            (2, 1),
            |_| nccl(Dtype::Float32, HOUR),
            |made, rank| {
                let error = made.err().expect("none can start").to_string();
                let expected = ["rank 1 left the group", "ncclAllGather"][rank];
                assert!(error.contains(expected), "{error}");
            },
        ),
        Ok("join") => {
            let options = |_| {
                let mut options = nccl(Dtype::Float32, DEADLINE);
                options.collectives.backend = CollectiveBackend::Auto;
                // Time for which ranks wait for the stuck one.
                options.collectives.joining = LIMIT / 10;
                options
            };
            ranks_end((4, 2), options, |mut gpu, rank| {
                let (about, mut sums) = (gpu.describe(WeightFormat::Float), [0.0; 2]);
                assert!(about.contains("through the host"), "{rank}: {about}");
                for (axis, sum) in [Axis::World, Axis::Attention].into_iter().zip(&mut sums) {
                    let mut x = tensor(&mut gpu, &[1.0], 1, Holds::Sum);
                    gpu.all_reduce(axis, &mut x).unwrap();
                    *sum = values(&mut gpu, &x)[0];
                }
                assert_eq!(sums, [4.0, 2.0], "{rank}");
            });
        }
        _ => {}
    }
}

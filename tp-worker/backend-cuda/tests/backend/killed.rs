//! Ranks as processes of their own, one of which is killed: the others end by the
//! deadline, name it, and leave nothing behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_backend::{Axis, Backend, BackendError};
use lockstep_backend_cuda::{CudaBackend, CudaOptions, Gpu};
use lockstep_collective::{CollectiveError, Options, SharedMemory, Stall};
use lockstep_types::Dtype;

use crate::stalls::{Ask, nccl, recorded};

/// The rank, how many there are, and the name of their group.
const RANK: &str = "TEST_KILLED_RANK";
/// The rank that is killed.
const VICTIM: usize = 1;
/// How long ranks wait for data, and how long after that they may end.
const DEADLINE: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;

/// When it is killed, in words of `FAKE_NCCL_KILL`. There are two passes, each of one
/// collective that runs once and is then recorded; behind these come launches of the
/// graphs, in which devices enter collectives and hosts ask for none.
const KILLS: [(&str, &str, usize); 6] = [
    ("in recording", "1:2:asked", 2),
    ("before a launch", "1:5:asked", 2),
    ("inside an all-reduce", "1:20:entered", 2),
    ("while it waits for others' parts", "1:20:brought", 2),
    ("inside one of four", "1:21:entered", 4),
    ("in recording, one of four", "1:4:asked", 4),
];

/// A rank's process.
fn start(name: &str, rank: usize, size: usize, kill: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "killed::rank",
        "--include-ignored",
        "--nocapture",
    ]);
    command.env(RANK, format!("{rank} {size} {name}"));
    command.env("FAKE_NCCL_KILL", kill);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// What lies in the folder of shared memory under names that contain one of `names`.
fn left_behind(names: &[String]) -> Vec<String> {
    let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let files = files.map(|file| file.file_name().to_string_lossy().into_owned());
    files
        .filter(|file| names.iter().any(|name| file.contains(name)))
        .collect()
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    if !lockstep_fake_cuda::seed(1) || Gpu::count().unwrap() < 4 {
        return; // Only the fake kills at a collective.
    }
    for (number, (when, kill, size)) in KILLS.into_iter().enumerate() {
        let name = format!("lockstep-test-killed-{}-{number}", std::process::id());
        let ranks = (0..size).map(|rank| start(&name, rank, size, kill));
        let mut ranks: Vec<_> = ranks.collect();
        let first = format!("lockstep-fake-nccl-{}-", ranks[0].id());
        let status = ranks[VICTIM].wait().unwrap();
        let dead = Instant::now();
        assert_eq!(status.signal(), Some(SIGKILL), "{when}");
        for (rank, child) in ranks
            .iter_mut()
            .enumerate()
            .filter(|(rank, _)| *rank != VICTIM)
        {
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let lines: Vec<_> = lines.map_while(Result::ok).collect();
            let status = child.wait().unwrap();
            let took = dead.elapsed();
            assert!(status.success(), "{when}, rank {rank}: {lines:#?}");
            assert!(took < DEADLINE + LATE, "{when}, rank {rank}: {took:?}");
        }
        assert_eq!(left_behind(&[name, first]), Vec::<String>::new(), "{when}");
    }
}

/// One rank, until its peer is dead.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn rank() {
    let Ok(words) = std::env::var(RANK) else {
        return;
    };
    let words: Vec<_> = words.split(' ').collect();
    let (rank, size) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let group = SharedMemory::join(words[2], rank, size, &Options::default()).unwrap();
    let options = CudaOptions {
        ordinal: rank,
        ..nccl(Dtype::Float32, DEADLINE)
    };
    let mut gpu = CudaBackend::new(&options, Box::new(group)).unwrap();
    let error = live(&mut gpu).unwrap_err();
    let BackendError::Collective(error) = error else {
        panic!("{error}");
    };
    println!("{error}");
    let named = match *error {
        CollectiveError::Stalled {
            stall: Stall::Missing { peer, .. } | Stall::Silent { peer, .. },
            ..
        }
        | CollectiveError::Deserted { peer, .. } => peer,
        error => panic!("{error}"),
    };
    assert_eq!(named, VICTIM);
    // Both ways have ended.
    gpu.control(Axis::World).barrier().unwrap_err();
}

/// Records passes and launches them, and sums something else in between.
fn live(gpu: &mut CudaBackend) -> Result<(), BackendError> {
    let mut recorded = recorded(gpu)?;
    for turn in 0.. {
        Ask::Pass(1 + turn % 2).run(gpu, &mut recorded)?;
        if turn % 8 == 1 {
            Ask::Sums(&[4]).run(gpu, &mut recorded)?;
        }
    }
    Ok(())
}

//! Every way in which ranks that exchange data from GPU to GPU miss each other, as processes
//! and in several orders of work. All ranks end in time, know the reason and leave nothing
//! behind.

mod rank;

use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use lockstep_backend_cuda::Gpu;

use crate::endings::WARM_UP;
use crate::stalls::DIFFERENT;
use crate::support::other_gpus;

/// The rank with the fault.
const ODD: usize = 1;
/// Further faults beside [`DIFFERENT`]: the rank's data is of another type; the rank does not
/// come; it comes late, after the others are gone; it is aborted.
const OTHERS: [&str; 4] = ["type", "missing", "late", "aborted"];
/// Kills: the operation behind those of the start, and the place in it, in words of
/// `FAKE_NCCL_KILL`. There are two passes, each with one collective. Each pass runs once and is
/// then recorded. Then the graphs are launched: devices enter collectives that no host asks
/// for.
const KILLS: [(&str, (usize, &str)); 5] = [
    ("killed in recording", (2, "asked")),
    ("killed in recording again", (4, "asked")),
    ("killed before a launch", (5, "asked")),
    ("killed inside an all-reduce", (20, "entered")),
    ("killed while it waits", (20, "brought")),
];
const SIZES: [usize; 2] = [2, 4];
const SEEDS: [u64; 3] = [1, 2, 3];
/// Groups that run at once on fake GPUs. They mostly wait for their deadlines.
const AT_ONCE: usize = 8;
const SIGKILL: i32 = 9;

/// A group with a fault.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// Name of the fault, as its ranks are told.
    wrong: &'static str,
    kill: Option<(usize, &'static str)>,
    size: usize,
    seed: u64,
}

/// Every fault at every size in every order. Real GPUs take no orders.
fn cases(fake: bool) -> Vec<Case> {
    let different = DIFFERENT.iter().map(|(wrong, ..)| *wrong);
    let faults = different.chain(OTHERS).map(|wrong| (wrong, None));
    let kills = KILLS.map(|(wrong, kill)| (wrong, Some(kill)));
    let faults: Vec<_> = faults.chain(kills.into_iter().filter(|_| fake)).collect();
    let seeds = &SEEDS[..if fake { SEEDS.len() } else { 1 }];
    let gpus = Gpu::count().unwrap();
    let sizes = SIZES.into_iter().filter(|size| *size <= gpus);
    let groups = sizes.flat_map(|size| seeds.iter().map(move |seed| (size, *seed)));
    let of_group = |(size, seed)| {
        faults.iter().map(move |(wrong, kill)| Case {
            wrong,
            kill: *kill,
            size,
            seed,
        })
    };
    groups.flat_map(of_group).collect()
}

#[test]
fn whatever_one_rank_does_wrong_all_ranks_end_and_know_why() {
    let fake = lockstep_fake_cuda::seed(1);
    let _turn = (!fake).then(other_gpus);
    let mut all = cases(fake);
    // Groups of many ranks first, since they take longest.
    all.sort_by_key(|case| case.size);
    let (all, wrong) = (Mutex::new(all), Mutex::new(Vec::new()));
    let next = || all.lock().unwrap().pop();
    let work = || {
        for case in std::iter::from_fn(next) {
            let found = case.run();
            wrong.lock().unwrap().extend(found);
        }
    };
    thread::scope(|scope| {
        for _ in 0..if fake { AT_ONCE } else { 1 } {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

impl Case {
    fn start(self, group: &str, rank: usize) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "table::rank::rank",
            "--include-ignored",
            "--nocapture",
        ]);
        let Self {
            wrong, size, seed, ..
        } = self;
        command.env(rank::RANK, format!("{rank} {size} {group} {wrong}"));
        let order = seed * SIZES[1] as u64 + rank as u64;
        command.env("FAKE_CUDA_SEED", order.to_string());
        let kill = |(operation, how)| format!("{ODD}:{}:{how}", WARM_UP + operation);
        command.envs(self.kill.map(|when| ("FAKE_NCCL_KILL", kill(when))));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::read(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Runs the case. Returns a report if something was wrong.
    fn run(self) -> Option<String> {
        let name: String = self.wrong.split(' ').collect();
        let Self { size, seed, .. } = self;
        let group = format!("lockstep-test-{}-{name}-{size}-{seed}", std::process::id());
        let mut ranks: Vec<_> = (0..size).map(|rank| self.start(&group, rank)).collect();
        // The odd rank stays until this end of its pipe is closed.
        let stays = ranks[ODD].child.stdin.take();
        let owners = ranks
            .iter()
            .map(|rank| format!("lockstep-fake-nccl-{}-", rank.child.id()));
        let names: Vec<_> = owners.chain([group]).collect();
        let mut said = String::new();
        let mut failed = false;
        let odd = ranks.remove(ODD);
        for (number, rank) in ranks.into_iter().enumerate() {
            let ended = rank.end(&mut said);
            failed |= ended != Some(0);
            said += &format!(
                "rank {} ended: {ended:?}\n",
                number + usize::from(number > 0)
            );
        }
        drop(stays);
        let ended = odd.end(&mut said);
        let expected = self.kill.map_or(0, |_| -SIGKILL);
        failed |= ended != Some(expected);
        let left = left_behind(&names);
        let wrong = failed || !left.is_empty();
        wrong.then(|| format!("{self:?}, rank {ODD} ended: {ended:?}, left: {left:?}\n{said}"))
    }
}

/// A rank's process, and the threads that read its output. They read both pipes from the
/// beginning: a full pipe would make the rank wait, and its peers for it.
struct Process {
    child: Child,
    reads: [JoinHandle<String>; 2],
}

impl Process {
    fn read(mut child: Child) -> Self {
        let reads = [
            reads(child.stdout.take().unwrap()),
            reads(child.stderr.take().unwrap()),
        ];
        Self { child, reads }
    }

    /// Adds the process's output to `said` until it ends. Returns its exit code, or its signal
    /// as a negative number.
    fn end(mut self, said: &mut String) -> Option<i32> {
        said.extend(self.reads.map(|reads| reads.join().unwrap()));
        let status = self.child.wait().unwrap();
        status.code().or(status.signal().map(|signal| -signal))
    }
}

/// Reads a pipe to its end.
fn reads(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut said = String::new();
        pipe.read_to_string(&mut said).unwrap();
        said
    })
}

/// Files of shared memory whose names contain one of `names`.
fn left_behind(names: &[String]) -> Vec<String> {
    let files = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let files = files.map(|file| file.file_name().to_string_lossy().into_owned());
    files
        .filter(|file| names.iter().any(|name| file.contains(name)))
        .collect()
}

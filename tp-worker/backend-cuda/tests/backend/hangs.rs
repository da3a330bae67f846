//! Faults that watchdogs and agreement end, run without them: such faults never end, on the
//! fake NCCL as on NVIDIA's. Each runs in a process that can be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use lockstep_backend_cuda::Gpu;
use lockstep_types::Dtype;

use crate::ranks::with_options;
use crate::stalls::{Ask, DIFFERENT, nccl, recorded};

/// Variable with the case: what all other ranks ask for, and what the odd rank does.
const CASE: &str = "TEST_HANGS";
/// Case of ranks that do not differ.
const NONE: &str = "none";
/// Case of a rank that never comes.
const MISSING: &str = "missing";
/// Longer than noticed faults take to end.
const SHORT: Duration = Duration::from_secs(2);
/// Longer than any rank takes to begin.
const LIMIT: Duration = Duration::from_secs(60);
/// Line of a rank that begins to wait.
const BEGINS: &str = "begins to wait";

/// A process whose two ranks differ, and the lines that it prints.
struct Ranks {
    case: &'static str,
    child: Child,
    lines: Receiver<String>,
}

impl Ranks {
    fn start(case: &'static str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "hangs::hangs",
            "--include-ignored",
            "--nocapture",
        ]);
        command.env(CASE, case).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let (said, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // The thread ends with the process.
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| said.send(line))
        });
        Self { case, child, lines }
    }

    /// Waits until both ranks wait.
    fn begun(&self) {
        let of_ranks = |line: &String| line.contains(BEGINS);
        let deadline = Instant::now() + LIMIT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let all = std::iter::from_fn(|| self.lines.recv_timeout(left()).ok());
        assert_eq!(all.filter(of_ranks).take(2).count(), 2, "{}", self.case);
    }

    /// Returns true if the process ends before `deadline`, and so prints nothing more.
    fn ends_before(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ranks_that_differ_wait_for_ever_where_nobody_watches() {
    if !lockstep_fake_cuda::seed(1) {
        return; // It shows what the fake does.
    }
    let cases = DIFFERENT
        .iter()
        .map(|(case, ..)| *case)
        .chain([MISSING, NONE]);
    let all: Vec<_> = cases.map(Ranks::start).collect();
    all.iter().for_each(Ranks::begun);
    let deadline = Instant::now() + SHORT;
    for ranks in &all {
        let ends = match ranks.case {
            NONE => ranks.ends_before(Instant::now() + LIMIT),
            _ => ranks.ends_before(deadline),
        };
        assert_eq!(ends, ranks.case == NONE, "{}", ranks.case);
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn hangs() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    if Gpu::count().unwrap() < 2 {
        return;
    }
    let different = DIFFERENT.into_iter().find(|(name, ..)| *name == case);
    let same = ("", Ask::Sums(&[4]), Ask::Sums(&[4]));
    let (_, ours, theirs) = different.unwrap_or(same);
    let hour = Duration::from_secs(3600);
    with_options(
        move |_| nccl(Dtype::Float32, hour),
        (2, 1),
        move |gpu, rank| {
            let mut recorded = recorded(gpu).unwrap();
            println!("rank {rank} {BEGINS}");
            if case == MISSING && rank == 1 {
                loop {
                    std::thread::park();
                }
            }
            let ask = if rank == 1 { theirs } else { ours };
            ask.run(gpu, &mut recorded).unwrap();
        },
    );
}

//! One rank of the table, in a process of its own.

use std::io::Read as _;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_backend::{Axis, BackendError, Exchange as _, Holds, Passes as _};
use lockstep_backend_cuda::{CudaBackend, CudaOptions};
use lockstep_collective::{CollectiveError, Options, SharedMemory, Stall};
use lockstep_types::Dtype;

use super::ODD;
use crate::endings::WARM_UP;
use crate::ranks::tensor;
use crate::stalls::{Ask, DIFFERENT, Recorded, nccl, recorded};

/// Variable with the rank, the number of ranks, the name of their group, and the fault.
pub(super) const RANK: &str = "TEST_RANK_OF_TABLE";
/// Longest time for which data may be on its way (`DEADLINE`), and time limit for a rank's end
/// after that.
const DEADLINE: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(2);
/// Longer than anybody would wait.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than a rank takes from its start to its end.
const LIMIT: Duration = Duration::from_secs(60);

/// A rank with its settings.
#[derive(Debug, Clone)]
struct Rank {
    rank: usize,
    size: usize,
    group: String,
    wrong: String,
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn rank() {
    let Ok(words) = std::env::var(RANK) else {
        return;
    };
    let words: Vec<_> = words.splitn(4, ' ').collect();
    let rank = Rank {
        rank: words[0].parse().unwrap(),
        size: words[1].parse().unwrap(),
        group: words[2].to_owned(),
        wrong: words[3].to_owned(),
    };
    let (ends, ended) = channel();
    // A rank that hangs ends with the process.
    thread::spawn(move || {
        rank.live();
        ends.send(()).unwrap();
    });
    ended.recv_timeout(LIMIT).expect("the rank ends, and well");
}

impl Rank {
    fn is_odd(&self) -> bool {
        self.rank == ODD
    }

    fn options(&self) -> CudaOptions {
        let dtype = match self.is_odd() && self.wrong == "type" {
            true => Dtype::Bfloat16,
            false => Dtype::Float32,
        };
        let patience = match &*self.wrong {
            // The peers of an aborted rank are told, and need no deadline.
            "aborted" => HOUR,
            // A rank that comes too late waits for no peer.
            "missing" | "late" if self.is_odd() => HOUR,
            _ => DEADLINE,
        };
        CudaOptions {
            ordinal: self.rank,
            ..nccl(dtype, patience)
        }
    }

    fn live(&self) {
        let seed = std::env::var("FAKE_CUDA_SEED").unwrap().parse().unwrap();
        let _order = lockstep_fake_cuda::order(seed);
        let (rank, size) = (self.rank, self.size);
        let group = SharedMemory::join(&self.group, rank, size, &Options::default()).unwrap();
        let mut gpu = CudaBackend::new(&self.options(), Box::new(group)).unwrap();
        let mut start = Instant::now();
        let found = self.meet(&mut gpu, &mut start);
        let took = start.elapsed();
        let error = match found {
            Err(BackendError::Collective(error)) => *error,
            other => panic!("{other:?}"),
        };
        self.expect(&error);
        let late = self.is_odd() && ["missing", "late"].contains(&&*self.wrong);
        assert!(took < DEADLINE + LATE || late, "after {took:?}: {error}");
        // Both ways have ended.
        gpu.control(Axis::World).barrier().unwrap_err();
    }

    /// Does what all ranks do, or what the fault says.
    fn meet(&self, gpu: &mut CudaBackend, start: &mut Instant) -> Result<(), BackendError> {
        // No rank waits for data while others still start.
        gpu.control(Axis::World).barrier().unwrap();
        let mut recorded = recorded(gpu)?;
        let recorded = &mut recorded;
        if self.wrong.starts_with("killed") {
            return live_on(gpu, recorded, start);
        }
        gpu.control(Axis::World).barrier().unwrap();
        *start = Instant::now();
        let done = self.ask(gpu, recorded);
        Ask::Sums(&[4]).run(gpu, recorded).unwrap_err();
        done
    }

    fn ask(&self, gpu: &mut CudaBackend, recorded: &mut Recorded) -> Result<(), BackendError> {
        let odd = self.is_odd();
        match &*self.wrong {
            "type" => Ask::Gather(&[2; 4]).run(gpu, recorded),
            "aborted" if odd => {
                gpu.control(Axis::World).abort_handle().abort();
                let ended = std::iter::repeat_with(|| gpu.arrive()).find(Result::is_err);
                ended.unwrap()
            }
            "aborted" => Ask::Sums(&[4]).run(gpu, recorded),
            "missing" | "late" if odd => {
                if self.wrong == "late" {
                    let mut x = tensor(gpu, &[1.0], 1, Holds::Sum);
                    gpu.all_reduce(Axis::World, &mut x)?;
                }
                // The rank lives, and comes when the others are gone.
                std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
                Ask::Sums(&[1, 1]).run(gpu, recorded)
            }
            "missing" | "late" => Ask::Sums(&[1, 1]).run(gpu, recorded),
            wrong => {
                let (_, ours, theirs) = DIFFERENT
                    .into_iter()
                    .find(|(name, ..)| *name == wrong)
                    .unwrap();
                if odd { theirs } else { ours }.run(gpu, recorded)
            }
        }
    }

    /// Whichever rank gives up first, each rank says what it waits for.
    fn expect(&self, error: &CollectiveError) {
        let (rank, odd) = (self.rank, self.is_odd());
        match (&*self.wrong, error) {
            (
                "aborted",
                CollectiveError::Aborted {
                    rank: own,
                    missing: None,
                },
            ) if odd => {
                assert_eq!(*own, rank);
            }
            // The odd rank's error depends on the ranks that have left by then.
            ("missing" | "late", _) if odd => {}
            (wrong, CollectiveError::Deserted { rank: own, peer })
                if !DIFFERENT.iter().any(|(name, ..)| name == &wrong) && wrong != "type" =>
            {
                assert_eq!((*own, *peer), (rank, ODD), "{error}");
            }
            (
                wrong,
                CollectiveError::Stalled {
                    rank: own, stall, ..
                },
            ) => {
                assert_eq!(*own, rank);
                self.expect_stall(wrong, stall);
            }
            _ => panic!("{error}"),
        }
    }

    fn expect_stall(&self, wrong: &str, stall: &Stall) {
        match (wrong, stall) {
            (
                "missing" | "late",
                Stall::Missing {
                    peer, theirs, ours, ..
                },
            ) => {
                let begun = 2 + u64::from(wrong == "late");
                let [theirs, ours] = [theirs, ours].map(|count| *count - WARM_UP as u64);
                assert_eq!((*peer, theirs, ours), (ODD, begun, 4), "{stall}");
            }
            ("aborted" | "missing" | "late", _) => panic!("{stall}"),
            (killed, Stall::Missing { peer, .. } | Stall::Silent { peer, .. })
                if killed.starts_with("killed") =>
            {
                assert_eq!(*peer, ODD, "{stall}");
            }
            (
                _,
                Stall::Diverged {
                    peer,
                    last,
                    their_last,
                    ours,
                    theirs,
                },
            ) => {
                // The odd rank differs from all others, and they only from it.
                assert_eq!(*peer, if self.is_odd() { 0 } else { ODD }, "{stall}");
                let same = ours == theirs && last == their_last;
                assert_eq!(same, wrong == "order", "{stall}");
            }
            _ => panic!("{stall}"),
        }
    }
}

/// Launches the recorded passes, and sums other floats in between.
fn live_on(
    gpu: &mut CudaBackend,
    recorded: &mut Recorded,
    start: &mut Instant,
) -> Result<(), BackendError> {
    for turn in 0.. {
        *start = Instant::now();
        Ask::Pass(1 + turn % 2).run(gpu, recorded)?;
        if turn % 8 == 1 {
            Ask::Sums(&[4]).run(gpu, recorded)?;
        }
    }
    Ok(())
}

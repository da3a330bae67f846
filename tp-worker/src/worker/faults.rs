//! Faults planted by tests in a rank, to see that the other ranks find them. The faults exist
//! in programs built with the feature `fault-hooks` that call [`enable`]. The environment says
//! where they strike:
//!
//! ```text
//! TEST_FAULT_IN_RANK=RANK:STEP:KIND
//! ```
//!
//! with the kinds of [`Fault`].

#[cfg(feature = "fault-hooks")]
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use super::WorkerError;

/// True if this program's ranks may go wrong.
#[cfg(feature = "fault-hooks")]
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Lets ranks of this program go wrong as the environment says. A program under test calls it
/// before its ranks begin. A build of the whole workspace has the feature in every program, so
/// the feature alone enables nothing.
#[cfg(feature = "fault-hooks")]
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `depth`: the rank takes another depth than the plan's.
    Depth,
    /// `stale-row`: the rank brings its row of the step before.
    StaleRow,
    /// `late-row`: the rank brings its row after the others have waited for a while.
    LateRow,
    /// `world-digest`: a bit of the digest that all ranks share flips.
    WorldDigest,
    /// `group-digest`: a bit of the digest that the ranks of the DP rank share flips.
    GroupDigest,
    /// `begun`: the rank is about to begin a pass in another state than the others.
    PassStart,
    /// `skipped-exchange`: the rank goes on without telling the others its row. Where rows
    /// travel with passes, the others get its last row.
    SkippedExchange,
    /// `stopped`: the rank's process stops, and does not end.
    Stopped,
    /// `killed`: the rank's process ends.
    Killed,
}

/// The faults of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    #[cfg(feature = "fault-hooks")]
    planted: Option<(u64, Fault)>,
}

impl Faults {
    /// Returns the faults that the environment plants in a rank.
    ///
    /// # Errors
    /// [`WorkerError::Fault`] if the words name no fault.
    #[cfg(feature = "fault-hooks")]
    pub fn of_rank(rank: usize) -> Result<Self, WorkerError> {
        let words = std::env::var("TEST_FAULT_IN_RANK");
        let Some(words) = words.ok().filter(|_| ENABLED.load(Ordering::Relaxed)) else {
            return Ok(Self::default());
        };
        let (of, step, kind) = parse(&words).ok_or(WorkerError::Fault(words))?;
        let planted = (of == rank).then_some((step, kind));
        Ok(Self { planted })
    }

    /// Returns no faults: this program has no hooks.
    #[cfg(not(feature = "fault-hooks"))]
    pub fn of_rank(_rank: usize) -> Result<Self, WorkerError> {
        Ok(Self::default())
    }

    /// Returns true if this fault strikes in `step`.
    #[cfg(feature = "fault-hooks")]
    pub fn strikes(self, step: u64, fault: Fault) -> bool {
        self.planted == Some((step, fault))
    }

    /// Returns false: this program has no hooks.
    #[cfg(not(feature = "fault-hooks"))]
    pub fn strikes(self, _step: u64, _fault: Fault) -> bool {
        false
    }

    /// Stops or ends this process, if such a fault strikes in `step`.
    pub fn end_process(self, step: u64) {
        if self.strikes(step, Fault::Stopped) {
            signal_self(Signal::STOP);
        }
        if self.strikes(step, Fault::Killed) {
            signal_self(Signal::KILL);
        }
    }

    /// Returns the bit of the depth that the rank gets wrong in `step`; 0 if it gets none
    /// wrong.
    pub fn other_depth(self, step: u64) -> u32 {
        u32::from(self.strikes(step, Fault::Depth))
    }

    /// Makes the other ranks wait, if that fault strikes in `step`.
    #[expect(clippy::disallowed_methods, reason = "to be late is the fault")]
    pub fn delay(self, step: u64) {
        if self.strikes(step, Fault::LateRow) {
            std::thread::sleep(LATE);
        }
    }
}

fn signal_self(signal: Signal) {
    // A signal that can't be sent leaves the rank as it is, which the test sees.
    let _ = kill_process(getpid(), signal);
}

/// Delay of a late row.
const LATE: std::time::Duration = std::time::Duration::from_secs(1);

/// Parses a fault as in `1:60:depth`: rank, step, kind.
#[cfg(feature = "fault-hooks")]
fn parse(words: &str) -> Option<(usize, u64, Fault)> {
    let mut words = words.split(':');
    let (rank, step) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let fault = match words.next()? {
        "depth" => Fault::Depth,
        "stale-row" => Fault::StaleRow,
        "late-row" => Fault::LateRow,
        "world-digest" => Fault::WorldDigest,
        "group-digest" => Fault::GroupDigest,
        "begun" => Fault::PassStart,
        "skipped-exchange" => Fault::SkippedExchange,
        "stopped" => Fault::Stopped,
        "killed" => Fault::Killed,
        _ => return None,
    };
    words.next().is_none().then_some((rank, step, fault))
}

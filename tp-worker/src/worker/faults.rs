//! Faults that tests plant in a rank, to see that the others find them. They are
//! there in programs that are built with the feature `fault-hooks` and call
//! [`enable`] alone, and strike where the environment says so:
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

/// Whether this program's ranks may go wrong.
#[cfg(feature = "fault-hooks")]
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Lets ranks of this program go wrong as the environment says: for programs that are
/// tested, before they begin. A build of the whole workspace has the feature in every
/// program.
#[cfg(feature = "fault-hooks")]
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `depth`: the rank takes another depth than the plan's.
    Depth,
    /// `stale-row`: it brings the row of the step before.
    StaleRow,
    /// `late-row`: it brings its row when the others have waited for a while.
    LateRow,
    /// `world-digest`: a bit of what all ranks share flips.
    WorldDigest,
    /// `group-digest`: a bit of what the ranks of its DP rank share flips.
    GroupDigest,
    /// `begun`: it is about to begin a pass in another state than the others.
    Begun,
    /// `skipped-exchange`: it goes on without telling the others its row; where rows travel
    /// with passes, these get its last one.
    SkippedExchange,
    /// `stopped`: its process stops, and does not end.
    Stopped,
    /// `killed`: its process ends.
    Killed,
}

/// The faults of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    #[cfg(feature = "fault-hooks")]
    planted: Option<(u64, Fault)>,
}

impl Faults {
    /// Those that the environment plants in a rank.
    ///
    /// # Errors
    /// [`WorkerError::Fault`] for words that name none.
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

    /// None: this program has no hooks.
    #[cfg(not(feature = "fault-hooks"))]
    pub fn of_rank(_rank: usize) -> Result<Self, WorkerError> {
        Ok(Self::default())
    }

    /// Whether this one strikes in `step`.
    #[cfg(feature = "fault-hooks")]
    pub fn strikes(self, step: u64, fault: Fault) -> bool {
        self.planted == Some((step, fault))
    }

    /// Never.
    #[cfg(not(feature = "fault-hooks"))]
    pub fn strikes(self, _step: u64, _fault: Fault) -> bool {
        false
    }

    /// Stops or ends this process, if that strikes in `step`.
    pub fn end_process(self, step: u64) {
        if self.strikes(step, Fault::Stopped) {
            signal_self(Signal::STOP);
        }
        if self.strikes(step, Fault::Killed) {
            signal_self(Signal::KILL);
        }
    }

    /// The bit of its depth that the rank gets wrong in `step`, if any.
    pub fn other_depth(self, step: u64) -> u32 {
        u32::from(self.strikes(step, Fault::Depth))
    }

    /// Lets the others wait, if that strikes in `step`.
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

/// How late a late row is.
const LATE: std::time::Duration = std::time::Duration::from_secs(1);

/// "1:60:depth".
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
        "begun" => Fault::Begun,
        "skipped-exchange" => Fault::SkippedExchange,
        "stopped" => Fault::Stopped,
        "killed" => Fault::Killed,
        _ => return None,
    };
    words.next().is_none().then_some((rank, step, fault))
}

//! Waiting on a word of shared memory: spin briefly, then sleep on a futex.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::Options;

/// A rank that takes part.
pub(crate) const PRESENT: u32 = 0;
/// A rank that failed or was dropped.
pub(crate) const LEFT: u32 = 1;
/// A rank that was aborted.
pub(crate) const ABORTED: u32 = 2;

/// The longest sleep before a rank looks around again.
const SLICE: Duration = Duration::from_millis(50);
/// Pauses between two looks at the clock.
const PAUSES: u32 = 32;

/// How long a rank waits in which way.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    spin: Duration,
    yields: u32,
    pub timeout: Duration,
}

impl Patience {
    /// The way of waiting for a group of `ranks` on this machine.
    pub fn new(ranks: usize, options: &Options) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = ranks.saturating_mul(options.threads_per_rank.max(1)) > cores;
        // A futex wake costs tens of microseconds on either side; peers on
        // their own cores usually arrive sooner. A crowded machine needs the
        // core for the very rank that is waited for.
        let spin = if crowded {
            Duration::ZERO
        } else {
            Duration::from_micros(100)
        };
        Self {
            spin,
            yields: if crowded { 4 } else { 0 },
            timeout: options.timeout,
        }
    }

    /// Spins until `done` or the budget is spent; says which.
    pub fn spin(&self, mut done: impl FnMut() -> bool) -> bool {
        if self.spin > Duration::ZERO {
            let start = Instant::now();
            while start.elapsed() < self.spin {
                for _ in 0..PAUSES {
                    if done() {
                        return true;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        for _ in 0..self.yields {
            if done() {
                return true;
            }
            std::thread::yield_now();
        }
        done()
    }
}

/// Sleeps while `word` is `value`, until woken or for a while, at most `limit`.
/// May return early.
pub(crate) fn sleep(word: &AtomicU32, value: u32, limit: Duration) -> Result<(), Errno> {
    let limit = limit.min(SLICE);
    let timeout = futex::Timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().max(1).into(),
    };
    match futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // It can fail only for a bad address, which a live reference is not.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Whether `arrived` has reached `phase`; both count modulo 2³².
pub(crate) fn reached(arrived: &AtomicU32, phase: u32) -> bool {
    arrived.load(Ordering::Acquire).wrapping_sub(phase) as i32 >= 0
}

//! How long to spin before sleeping.

use std::time::{Duration, Instant};

use crate::Options;

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
    /// The way of waiting for a group with `ranks` on this machine.
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

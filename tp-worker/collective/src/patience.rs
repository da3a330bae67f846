//! Spinning, and the time to spin before sleeping.

use std::time::{Duration, Instant};

use crate::Options;

/// Number of pauses between two looks at the clock: 1–2 µs on current processors.
const PAUSES: u32 = 32;
/// Number of turns that a thread gives away on a crowded machine before it sleeps.
const YIELDS: u32 = 4;

/// The wait of a thread for another one that computes. The thread spins for a bounded time, and
/// the caller then puts it to sleep.
///
/// Waking a sleeper costs microseconds, on a virtual machine tens of them. So spinning pays if
/// the other thread is about to finish on a core of its own. If threads outnumber cores,
/// spinning would take the core from the very thread that is waited for; the waiting thread
/// then gives its turn away instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spin {
    limit: Duration,
}

impl Spin {
    /// Makes a wait that spins for up to `limit`, or not at all if the machine is `crowded`.
    #[must_use]
    pub fn new(limit: Duration, crowded: bool) -> Self {
        let limit = if crowded { Duration::ZERO } else { limit };
        Self { limit }
    }

    /// Waits until `done` returns true or the time is spent. Returns true if `done` did.
    pub fn until(self, mut done: impl FnMut() -> bool) -> bool {
        if self.limit.is_zero() {
            for _ in 0..YIELDS {
                if done() {
                    return true;
                }
                std::thread::yield_now();
            }
            return done();
        }
        let mut start = None;
        loop {
            for _ in 0..PAUSES {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            // Most waits end before the clock is looked at.
            if start.get_or_insert_with(Instant::now).elapsed() >= self.limit {
                return done();
            }
        }
    }
}

/// Returns true if `threads`, computing at the same time, outnumber the cores that this thread
/// may run on.
#[must_use]
pub fn is_crowded(threads: usize) -> bool {
    threads > std::thread::available_parallelism().map_or(1, usize::from)
}

/// The times and ways in which a rank waits.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub crowded: bool,
    pub spin: Spin,
    pub timeout: Duration,
}

impl Patience {
    /// Returns the way of waiting for a group with `ranks` ranks on this machine.
    pub fn new(ranks: usize, options: &Options) -> Self {
        let crowded = is_crowded(ranks.saturating_mul(options.threads_per_rank.max(1)));
        Self {
            crowded,
            spin: Spin::new(Duration::from_micros(100), crowded),
            timeout: options.timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn spinning_ends_with_the_condition_or_the_time() {
        for crowded in [false, true] {
            let spin = Spin::new(Duration::from_micros(20), crowded);
            assert!(!spin.until(|| false));
            assert!(spin.until(|| true));
            let mut looks = 0;
            let third = spin.until(|| {
                looks += 1;
                looks == 3
            });
            assert!(third && looks == 3);
        }
    }

    #[test]
    fn a_crowded_machine_is_not_spun_on() {
        assert!(!is_crowded(1));
        assert!(is_crowded(1 << 20));
        let mut looks = 0;
        Spin::new(Duration::from_secs(60), true).until(|| {
            looks += 1;
            false
        });
        assert_eq!(looks, YIELDS + 1);
    }

    #[test]
    fn another_thread_is_seen() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| done.store(true, Ordering::Release));
            let spin = Spin::new(Duration::from_secs(60), false);
            assert!(spin.until(|| done.load(Ordering::Acquire)));
        });
    }
}

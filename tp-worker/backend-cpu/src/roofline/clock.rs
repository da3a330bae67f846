//! Clock for measurements of kernels.

use std::sync::LazyLock;
use std::time::Instant;

/// A clock for measuring work on a number of threads.
///
/// With one thread it counts the time that the thread ran, which other work on the machine
/// does not lengthen. With several it counts the time that passed, since threads wait for
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    own: bool,
}

impl Clock {
    /// The clock for work on `threads` threads, the caller among them.
    #[must_use]
    pub fn for_threads(threads: usize) -> Self {
        Self {
            own: threads == 1 && cfg!(target_os = "linux"),
        }
    }

    /// Seconds since some moment; only differences count. With one thread's clock both ends
    /// have to be read on that thread.
    #[must_use]
    pub fn seconds(self) -> f64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        if self.own {
            thread_seconds()
        } else {
            START.elapsed().as_secs_f64()
        }
    }

    /// The kind of time that the clock counts, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.own {
            "time the thread ran"
        } else {
            "time that passed"
        }
    }
}

#[cfg(target_os = "linux")]
fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(not(target_os = "linux"))]
fn thread_seconds() -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        for threads in [1, 2] {
            let clock = Clock::for_threads(threads);
            let start = clock.seconds();
            let mut now = start;
            while now <= start {
                now = clock.seconds();
                assert!(now >= start);
            }
        }
    }
}

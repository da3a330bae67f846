//! How often something may be started anew.

use std::time::Duration;

use tokio::time::Instant;

/// Before the first restart; doubled for each one after it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What served for so long has recovered: restarts before that count no more.
const RECOVERED: Duration = Duration::from_secs(600);

/// Counts restarts, of the engine and of single processes alike.
#[derive(Debug)]
pub(super) struct Restarts {
    most: u32,
    used: u32,
    healthy_since: Option<Instant>,
}

/// One that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    /// From 1.
    pub(super) number: u32,
    /// To wait for before it.
    pub(super) pause: Duration,
}

impl Restarts {
    /// Allows `most` (`--max-restarts`).
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            used: 0,
            healthy_since: None,
        }
    }

    /// Restarts that are allowed in all.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Everything serves from `now` on.
    pub(super) fn healthy(&mut self, now: Instant) {
        self.healthy_since = Some(now);
    }

    /// Something failed; `None` when nothing may be started anew any more.
    pub(super) fn take(&mut self, now: Instant) -> Option<Restart> {
        let since = self.healthy_since.take();
        if since.is_some_and(|since| now.duration_since(since) >= RECOVERED) {
            self.used = 0;
        }
        if self.used == self.most {
            return None;
        }
        let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(self.used.min(8)));
        self.used += 1;
        let number = self.used;
        Some(Restart { number, pause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(restarts: &mut Restarts, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| restarts.take(now))
            .map(|restart| restart.number)
            .collect()
    }

    #[test]
    fn they_are_counted_and_forgotten_after_a_healthy_while() {
        let now = Instant::now();
        let mut restarts = Restarts::new(3);
        assert_eq!(numbers(&mut restarts, now), [1, 2, 3]);
        restarts.healthy(now);
        let early = now + RECOVERED - Duration::from_millis(1);
        assert_eq!(restarts.take(early), None);
        restarts.healthy(now);
        assert_eq!(numbers(&mut restarts, now + RECOVERED), [1, 2, 3]);
        // A start that takes long is no health.
        assert_eq!(restarts.take(now + 3 * RECOVERED), None);
        assert_eq!(Restarts::new(0).take(now), None);
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut restarts = Restarts::new(20);
        let now = Instant::now();
        let pauses: Vec<_> = std::iter::from_fn(|| restarts.take(now))
            .map(|restart| restart.pause.as_secs())
            .collect();
        assert_eq!(pauses[..6], [1, 2, 4, 8, 16, 30]);
        assert_eq!(pauses.last(), Some(&30));
    }
}

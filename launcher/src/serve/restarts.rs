//! Rules of restarts: their number, and the pause before each.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Restarts without a pause among those within [`WINDOW`]: a process that dies once in a
/// while is back as soon as possible.
const AT_ONCE: usize = 3;
/// Pause before the first restart beyond [`AT_ONCE`], and before the restart of a start that
/// failed. Each further pause is twice as long. An engine that dies again and again should
/// leave its machine some time. Obstacles to a start, such as a port or memory that is not
/// free yet, need time to go.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Age from which on restarts cause no pause. An engine that has served this long has
/// recovered: earlier restarts no longer count against the limit.
const WINDOW: Duration = Duration::from_secs(600);

/// Counts restarts, of the engine and of single processes alike.
#[derive(Debug)]
pub(super) struct Restarts {
    most: u32,
    used: u32,
    healthy_since: Option<Instant>,
    /// Restarts since all processes served last.
    in_vain: usize,
    /// Times of restarts within the window, and perhaps of older ones.
    recent: Vec<Instant>,
}

/// A restart that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    /// Number of the restart, from 1.
    pub(super) number: u32,
    /// Time to wait before the restart.
    pub(super) pause: Duration,
}

impl Restarts {
    /// Allows `most` restarts (`--max-restarts`).
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            used: 0,
            healthy_since: None,
            in_vain: 0,
            recent: Vec::new(),
        }
    }

    /// Number of restarts that are allowed in all.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Notes that everything serves from `now` on.
    pub(super) fn healthy(&mut self, now: Instant) {
        self.healthy_since = Some(now);
        self.in_vain = 0;
    }

    /// The restart after a failure at the time `now`; `None` when no more are allowed.
    pub(super) fn next(&self, now: Instant) -> Option<Restart> {
        let within = |since: &Instant| now.duration_since(*since) < WINDOW;
        let recovered = self.healthy_since.is_some_and(|since| !within(&since));
        let used = if recovered { 0 } else { self.used };
        if used == self.most {
            return None;
        }
        let recent = self.recent.iter().filter(|since| within(since)).count();
        let beyond = recent.checked_sub(AT_ONCE);
        let pause = match beyond.max(self.in_vain.checked_sub(1)) {
            None => Duration::ZERO,
            Some(beyond) => LONGEST_PAUSE.min(FIRST_PAUSE * (1 << beyond.min(8))),
        };
        let number = used + 1;
        Some(Restart { number, pause })
    }

    /// Counts a failure, and returns the restart that follows; `None` when no more are
    /// allowed.
    pub(super) fn take(&mut self, now: Instant) -> Option<Restart> {
        let restart = self.next(now);
        self.healthy_since = None;
        if let Some(Restart { number, .. }) = restart {
            self.used = number;
            self.in_vain += 1;
            self.recent
                .retain(|since| now.duration_since(*since) < WINDOW);
            self.recent.push(now);
        }
        restart
    }
}

impl fmt::Display for Restart {
    /// Writes when the restart comes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pause {
            Duration::ZERO => f.write_str("at once"),
            pause => write!(f, "in {} s", pause.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses in seconds of all allowed restarts, each after a time of serving.
    fn after_serving(restarts: &mut Restarts, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| {
            restarts.healthy(now);
            restarts.take(now)
        })
        .map(|restart| restart.pause.as_secs())
        .collect()
    }

    fn numbers(restarts: &mut Restarts, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| restarts.take(now))
            .map(|restart| restart.number)
            .collect()
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn they_are_counted_and_forgotten_after_a_healthy_while() {
        let now = Instant::now();
        let mut restarts = Restarts::new(3);
        assert_eq!(numbers(&mut restarts, now), [1, 2, 3]);
        restarts.healthy(now);
        let early = now + WINDOW - Duration::from_millis(1);
        assert_eq!(restarts.take(early), None);
        restarts.healthy(now);
        assert_eq!(numbers(&mut restarts, now + WINDOW), [1, 2, 3]);
        // A start that takes long is no recovery.
        assert_eq!(restarts.take(now + 3 * WINDOW), None);
        assert_eq!(Restarts::new(0).take(now), None);
    }

    #[test]
    fn the_first_three_come_at_once_and_then_pauses_grow_to_a_limit() {
        let mut restarts = Restarts::new(20);
        let now = Instant::now();
        let pauses = after_serving(&mut restarts, now);
        assert_eq!(pauses[..9], [0, 0, 0, 1, 2, 4, 8, 16, 30]);
        assert_eq!((pauses.len(), pauses.last()), (20, Some(&30)));
    }

    #[test]
    fn what_did_not_serve_in_between_is_not_repeated_at_once() {
        let now = Instant::now();
        let mut restarts = Restarts::new(20);
        let pause = |restart: Option<Restart>| restart.map(|restart| restart.pause.as_secs());
        restarts.healthy(now);
        let pauses: Vec<_> = (0..7).map(|_| pause(restarts.take(now))).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 30].map(Some));
        // A start may take longer than the window of recent restarts.
        let later = now + 2 * WINDOW;
        assert_eq!(pause(restarts.take(later)), Some(30));
        restarts.healthy(later);
        let pauses: Vec<_> = (0..3).map(|_| pause(restarts.take(later))).collect();
        assert_eq!(pauses, [0, 1, 2].map(Some), "it served in between");
    }

    #[test]
    fn pauses_follow_what_ten_minutes_have_seen() {
        let begin = Instant::now();
        let mut restarts = Restarts::new(100);
        // One restart in four minutes never waits, for any length of time.
        for number in 0..20 {
            restarts.healthy(begin + seconds(240) * number);
            let restart = restarts.take(begin + seconds(240) * number);
            assert_eq!(restart.map(|restart| restart.pause), Some(seconds(0)));
        }
        let later = begin + seconds(240 * 20);
        let pauses = [0, 1, 590, 601].map(|after| {
            restarts.healthy(later + seconds(after));
            let restart = restarts.take(later + seconds(after));
            restart.map(|restart| restart.pause.as_secs())
        });
        // Restarts with two, three, two and one others in the last ten minutes.
        assert_eq!(pauses, [0, 1, 0, 0].map(Some));
    }

    #[test]
    fn what_comes_next_is_known_before() {
        let now = Instant::now();
        let mut restarts = Restarts::new(5);
        loop {
            let next = restarts.next(now);
            assert_eq!(restarts.next(now), next, "nothing is used up");
            assert_eq!(restarts.take(now), next);
            if next.is_none() {
                break;
            }
        }
        let restart = |pause| Restart { number: 1, pause };
        assert_eq!(restart(seconds(0)).to_string(), "at once");
        assert_eq!(restart(seconds(8)).to_string(), "in 8 s");
    }
}

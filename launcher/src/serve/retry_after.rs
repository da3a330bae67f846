//! Estimate of when requests will be served again: clients get it in `Retry-After`.

use std::time::Duration;

use super::restarts::Restart;

/// Interval at which processes are told the outlook, if it has changed: they look at no
/// clock for it.
pub(super) const FORESEEN: Duration = Duration::from_secs(1);
/// Time within which the rest of a failed engine ends, about.
const ENDING: Duration = Duration::from_millis(500);

/// Durations of starts so far.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// Duration of the last start.
    start: Option<Duration>,
}

impl Outlook {
    /// Notes that an engine was ready `took` after its start.
    pub(super) fn started(&mut self, took: Duration) {
        self.start = Some(took);
    }

    /// Seconds until requests are served, at time `since` after a start began. `None` if no
    /// start was seen before.
    pub(super) fn while_starting(&self, since: Duration) -> Option<u32> {
        self.start.map(|start| seconds(start.saturating_sub(since)))
    }

    /// Seconds until requests are served again if the engine failed now and the `next`
    /// restart followed. `None` if no restart would follow, or if no start was seen before.
    pub(super) fn while_serving(&self, next: Option<Restart>) -> Option<u32> {
        let (start, next) = (self.start?, next?);
        Some(seconds(ENDING + next.pause + start))
    }
}

/// Whole seconds, rounded up, at least one.
fn seconds(time: Duration) -> u32 {
    let whole = time.as_millis().div_ceil(1000).max(1);
    u32::try_from(whole).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_pause_and_what_the_last_start_took() {
        let ms = Duration::from_millis;
        let next = |pause| Some(Restart { number: 1, pause });
        let mut outlook = Outlook::default();
        assert_eq!(outlook.while_starting(ms(0)), None);
        assert_eq!(
            outlook.while_serving(next(ms(0))),
            None,
            "no start was seen"
        );
        outlook.started(ms(9_400));
        assert_eq!(outlook.while_serving(None), None, "no restart follows");
        for (pause, expected) in [(0, 10), (1_000, 11), (30_000, 40)] {
            assert_eq!(outlook.while_serving(next(ms(pause))), Some(expected));
        }
        for (since, expected) in [(0, 10), (400, 9), (8_400, 1), (60_000, 1)] {
            assert_eq!(outlook.while_starting(ms(since)), Some(expected));
        }
        outlook.started(ms(100));
        assert_eq!(outlook.while_starting(ms(0)), Some(1), "of the last one");
    }
}

//! When requests will be served again, as far as that is known: what clients are told
//! by `Retry-After`.

use std::time::Duration;

use super::restarts::Restart;

/// How often processes are told, where it has changed: they look at no clock for it.
pub(super) const FORESEEN: Duration = Duration::from_secs(1);
/// What is left of an engine that failed ends within about this.
const ENDING: Duration = Duration::from_millis(500);

/// What was seen of starts.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// How long the last one took.
    start: Option<Duration>,
}

impl Outlook {
    /// An engine was ready so long after its start.
    pub(super) fn started(&mut self, took: Duration) {
        self.start = Some(took);
    }

    /// Seconds until requests are served, so long `since` a start began; `None` where
    /// none was seen before.
    pub(super) fn while_starting(&self, since: Duration) -> Option<u32> {
        self.start.map(|start| seconds(start.saturating_sub(since)))
    }

    /// Seconds until requests are served again if the engine failed now, and the `next`
    /// restart followed; `None` where none would, or none was seen before.
    pub(super) fn while_serving(&self, next: Option<Restart>) -> Option<u32> {
        let (start, next) = (self.start?, next?);
        Some(seconds(ENDING + next.pause + start))
    }
}

/// Whole ones, at least one.
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

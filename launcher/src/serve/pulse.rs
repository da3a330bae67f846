//! Pings that check that the roles still run: their runtimes answer them.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use super::children::Children;

/// Pings within the limit. If the launcher was held up itself, with the whole machine, it
/// counts only pings that it has sent.
const PINGS: u32 = 5;

/// Pings the children at intervals, unless pings are switched off.
pub(super) struct Pulse {
    limit: Duration,
    ticks: Option<Interval>,
}

impl Pulse {
    /// A pulse that lets a child leave pings unanswered for `limit`; 0 is for ever.
    pub(super) fn new(limit: Duration) -> Self {
        let ticks = (!limit.is_zero()).then(|| {
            let mut ticks = interval(limit / PINGS);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self { limit, ticks }
    }

    /// Waits until it is time to ping. Cancelling loses nothing.
    pub(super) async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => {
                ticks.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Pings all children and kills the ones that hang.
    pub(super) fn ping(&self, children: &mut Children) {
        for role in children.ping(PINGS) {
            let limit = self.limit.as_secs();
            tracing::error!("{role} did not answer for {limit} s (--ping-timeout): killed");
            let why = format!("did not answer for {limit} s (--ping-timeout) and was killed");
            children.give_up(role, why);
        }
    }
}

//! Changes of the prefix cache, for gateways that route by what is cached.

use lockstep_planner::{CacheEvent, Planner};
use tokio::sync::mpsc;

/// Batches that may wait for one subscriber; one further behind is cut off and
/// has to start over, for a gap would make its picture of the cache wrong.
pub const EVENT_QUEUE: usize = 1024;

/// Who wants to know.
#[derive(Default)]
pub struct KvEvents {
    subscribers: Vec<mpsc::Sender<Vec<CacheEvent>>>,
}

impl KvEvents {
    /// Adds a subscriber, which is told first what is cached already; dropping
    /// its receiver ends the subscription.
    pub fn subscribe(&mut self, subscriber: mpsc::Sender<Vec<CacheEvent>>, planner: &mut Planner) {
        // What happened up to here is in the snapshot.
        self.publish(planner);
        self.subscribers
            .retain(|subscriber| !subscriber.is_closed());
        if subscriber.try_send(planner.cache_snapshot()).is_ok() {
            self.subscribers.push(subscriber);
        }
    }

    /// Sends what changed since the last call.
    pub fn publish(&mut self, planner: &mut Planner) {
        let mut events = planner.cache_events().peekable();
        if events.peek().is_none() {
            return;
        }
        let events: Vec<CacheEvent> = events.collect();
        self.subscribers
            .retain(|subscriber| subscriber.try_send(events.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use lockstep_planner::PlannerConfig;

    use super::*;

    #[test]
    fn subscribers_that_left_are_forgotten_although_nothing_happens() {
        let config = PlannerConfig {
            kv_events: true,
            ..PlannerConfig::default()
        };
        let mut planner = Planner::new(config).expect("a planner");
        let mut events = KvEvents::default();
        for _ in 0..3 {
            let (subscriber, receiver) = mpsc::channel(1);
            events.subscribe(subscriber, &mut planner);
            drop(receiver);
        }
        let (subscriber, _receiver) = mpsc::channel(1);
        events.subscribe(subscriber, &mut planner);
        assert_eq!(events.subscribers.len(), 1);
    }
}

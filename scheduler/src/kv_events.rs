//! Changes of the prefix caches, for gateways that route requests by cached prefixes.

use lockstep_planner::{CacheEvent, Planner};
use tokio::sync::mpsc;

use crate::adapters::AdapterNames;

/// Most batches that wait for one subscriber. A subscriber further behind is cut off and has to
/// start over, for a gap would make its picture of the cache wrong.
pub const EVENT_QUEUE: usize = 1024;

/// Changes of one DP rank's cache, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheChanges {
    /// Number of the DP rank.
    pub dp_rank: u32,
    /// Additions to its cache and removals from it.
    pub events: Vec<CacheEvent>,
    /// Names of the adapters that are in memory.
    pub adapters: AdapterNames,
}

impl CacheChanges {
    fn new((dp_rank, events): (u32, Vec<CacheEvent>), adapters: &AdapterNames) -> Self {
        Self {
            dp_rank,
            events,
            adapters: adapters.clone(),
        }
    }
}

/// Subscribers to the changes.
#[derive(Default)]
pub struct KvEvents {
    subscribers: Vec<mpsc::Sender<CacheChanges>>,
}

impl KvEvents {
    /// Adds a subscriber, which first gets the contents of each DP rank's cache. Dropping its
    /// receiver ends the subscription.
    pub fn subscribe(
        &mut self,
        subscriber: mpsc::Sender<CacheChanges>,
        planner: &mut Planner,
        adapters: &AdapterNames,
    ) {
        // The snapshot has all changes up to here.
        self.publish(planner, adapters);
        self.subscribers
            .retain(|subscriber| !subscriber.is_closed());
        let snapshots = planner.cache_snapshot();
        let mut snapshots = snapshots.map(|snapshot| CacheChanges::new(snapshot, adapters));
        if snapshots.all(|snapshot| subscriber.try_send(snapshot).is_ok()) {
            self.subscribers.push(subscriber);
        }
    }

    /// Sends the changes since the last call.
    pub fn publish(&mut self, planner: &mut Planner, adapters: &AdapterNames) {
        let changes = planner.cache_events();
        let changes = changes.map(|changes| CacheChanges::new(changes, adapters));
        for changes in changes.filter(|changes| !changes.events.is_empty()) {
            self.subscribers
                .retain(|subscriber| subscriber.try_send(changes.clone()).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_planner::PlannerConfig;

    use super::*;

    fn planner(dp_size: u32) -> Planner {
        let config = PlannerConfig {
            kv_events: true,
            dp_size,
            ..PlannerConfig::default()
        };
        Planner::new(config).expect("a planner")
    }

    fn changes(dp_rank: u32, events: Vec<CacheEvent>) -> CacheChanges {
        CacheChanges::new((dp_rank, events), &AdapterNames::default())
    }

    #[test]
    fn subscribers_that_left_are_forgotten_although_nothing_happens() {
        let mut planner = planner(1);
        let mut events = KvEvents::default();
        for _ in 0..3 {
            let (subscriber, receiver) = mpsc::channel(1);
            events.subscribe(subscriber, &mut planner, &AdapterNames::default());
            drop(receiver);
        }
        let (subscriber, _receiver) = mpsc::channel(1);
        events.subscribe(subscriber, &mut planner, &AdapterNames::default());
        assert_eq!(events.subscribers.len(), 1);
    }

    #[test]
    fn every_dp_rank_tells_of_its_own_cache() {
        let mut planner = planner(3);
        let mut events = KvEvents::default();
        let (subscriber, mut receiver) = mpsc::channel(8);
        events.subscribe(subscriber, &mut planner, &AdapterNames::default());
        let told: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        let expected: Vec<_> = (0..3).map(|dp_rank| changes(dp_rank, Vec::new())).collect();
        assert_eq!(told, expected, "empty ones too");
        planner.flush_cache().expect("idle");
        events.publish(&mut planner, &AdapterNames::default());
        for dp_rank in 0..3 {
            let cleared = changes(dp_rank, vec![CacheEvent::Cleared]);
            assert_eq!(receiver.try_recv(), Ok(cleared));
        }
        assert!(receiver.try_recv().is_err());
    }
}

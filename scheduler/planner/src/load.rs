//! How busy the planner is, and what it has done since the start.

use crate::{Planner, table::len_u32};

/// A snapshot of the planner's load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that hold a slot.
    pub running_requests: u32,
    /// Requests that wait for one, retracted ones included.
    pub waiting_requests: u32,
    /// Tokens of the waiting requests.
    pub waiting_tokens: u64,
    /// KV tokens held by requests, in whole pages.
    pub kv_tokens_used: u64,
    /// KV tokens of the prefix cache that can be evicted.
    pub kv_tokens_cached: u64,
    /// KV tokens there are.
    pub kv_tokens_total: u64,
    /// Pages that nobody accounts for: always 0.
    pub leaked_pages: u64,
    /// Steps planned and not completed.
    pub steps_in_flight: u32,
    /// Sums since the start.
    pub counters: Counters,
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted.
    pub requests: u64,
    /// Requests refused because a queue was full.
    pub rejected: u64,
    /// Requests that ended well.
    pub finished: u64,
    /// Requests aborted.
    pub aborted: u64,
    /// Requests that ran into a time limit.
    pub timed_out: u64,
    /// Requests that ended with another error.
    pub failed: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of those, tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens computed, retractions' repeats included.
    pub prefill_tokens: u64,
    /// Decode rows planned.
    pub decode_rows: u64,
    /// Steps completed.
    pub steps: u64,
    /// Requests put back because pages ran out.
    pub retractions: u64,
    /// Requests put back in favour of a higher priority.
    pub preemptions: u64,
    /// KV tokens evicted from the prefix cache.
    pub evicted_tokens: u64,
}

impl Planner {
    /// Gauges and counters; cheap enough for every step.
    pub fn load(&self) -> Load {
        let page = u64::from(self.config.page_size);
        let pool = &self.kv.pool;
        let outside = pool.capacity() - pool.free_pages();
        let evictable = self.kv.evictable_pages();
        let cached = self
            .kv
            .cache
            .as_ref()
            .map_or(0, |cache| cache.total_pages());
        let own = |index: &u32| {
            let entry = &self.table[*index];
            len_u32(&entry.pages) - entry.protected_pages
        };
        let held: u32 = self.running.iter().map(own).sum();
        let running = len_u32(&self.running);
        Load {
            running_requests: running,
            waiting_requests: u32::try_from(self.table.len()).unwrap_or(u32::MAX) - running,
            waiting_tokens: self.queue.tokens(),
            kv_tokens_used: u64::from(outside - evictable) * page,
            kv_tokens_cached: u64::from(evictable) * page,
            kv_tokens_total: self.config.capacity_tokens(),
            leaked_pages: u64::from(outside.saturating_sub(cached + held)),
            steps_in_flight: u32::try_from(self.in_flight()).unwrap_or(u32::MAX),
            counters: Counters {
                evicted_tokens: self.kv.evicted_pages * page,
                ..self.counters
            },
        }
    }
}

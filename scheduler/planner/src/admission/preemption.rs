//! A waiting request may displace running ones that it outranks by far.

use super::Admission;
use crate::{batch::Batch, kv::Kv, request::RequestTable};

/// A waiting request may displace running ones whose priority is lower by this
/// much (SGLang's `--priority-scheduling-preemption-threshold`).
const PREEMPTION_THRESHOLD: i64 = 10;

impl Admission {
    /// The first waiting request, and the running ones that it may displace,
    /// the least important first; `None` when that would not let it in.
    pub fn preemption(
        &mut self,
        requests: &RequestTable,
        batch: &Batch,
        kv: &mut Kv,
    ) -> Option<(u32, Vec<u32>)> {
        if !self.config.priority_scheduling || self.held {
            return None;
        }
        let head = self.queue.first()?;
        let priority = |index: u32| i64::from(requests[index].priority);
        let outranked = |victim: &u32| priority(head) - priority(*victim) >= PREEMPTION_THRESHOLD;
        let victims: Vec<u32> = batch.running().rev().take_while(outranked).collect();
        let pages = |victim: &u32| requests[*victim].kv.page_count() as u64;
        let held: u64 = victims.iter().map(pages).sum();
        let enough = !victims.is_empty() && self.pages_short(requests, batch, kv, head) <= held;
        (enough && !self.would_defer(requests, batch, kv, head)).then_some((head, victims))
    }

    /// Whether a waiting request could get a slot now.
    pub fn has_room_for(
        &self,
        head: u32,
        requests: &RequestTable,
        batch: &Batch,
        kv: &mut Kv,
    ) -> bool {
        batch.free_slots() > 0 && self.pages_short(requests, batch, kv, head) == 0
    }

    /// The request would rather wait for its prefix than use the room.
    fn would_defer(
        &mut self,
        requests: &RequestTable,
        batch: &Batch,
        kv: &mut Kv,
        index: u32,
    ) -> bool {
        self.collect_prefilling(requests, batch, kv);
        self.should_defer(requests, kv, index)
    }

    /// Pages missing to admit a waiting request beside the running ones.
    fn pages_short(&self, requests: &RequestTable, batch: &Batch, kv: &mut Kv, index: u32) -> u64 {
        let request = &requests[index];
        let matched = kv.match_len(request) / self.config.page_size;
        let need = if batch.is_empty() {
            kv.pages_for(request.least_tokens(&self.config.reserve))
        } else {
            let own = self.future_pages_of(request, kv).saturating_sub(matched);
            // Matched pages stop being evictable once the request is in.
            own.saturating_add(self.future_pages(requests, batch, kv))
                .saturating_add(matched)
        };
        u64::from(need.saturating_sub(kv.available()))
    }
}

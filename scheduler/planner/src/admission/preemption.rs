//! Who gives its slot to whom.

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
        if self.held {
            return None;
        }
        let (head, place) = self.queue.first()?;
        let mut victims = self.outranked(head, requests, batch);
        if victims.is_empty() {
            victims = self.crowding(head, place, requests, batch);
        }
        let pages = |victim: &u32| requests[*victim].kv.page_count() as u64;
        let held: u64 = victims.iter().map(pages).sum();
        if victims.is_empty() || self.pages_short(requests, batch, kv, head, &victims) > held {
            return None;
        }
        (!self.would_defer(requests, batch, kv, head)).then_some((head, victims))
    }

    /// Running requests whose priority is lower by far.
    fn outranked(&self, head: u32, requests: &RequestTable, batch: &Batch) -> Vec<u32> {
        if !self.config.priority_scheduling {
            return Vec::new();
        }
        let priority = |index: u32| i64::from(requests[index].priority);
        let outranked = |victim: &u32| priority(head) - priority(*victim) >= PREEMPTION_THRESHOLD;
        batch.running().rev().take_while(outranked).collect()
    }

    /// Choices of a client request that took more than half of all slots, or of
    /// all memory, while nobody else waited: the last ones that it can give up
    /// and still have half, and more than the `place` slots of the head's own.
    fn crowding(&self, head: u32, place: u32, requests: &RequestTable, batch: &Batch) -> Vec<u32> {
        let Some((parent, running)) = self.queue.crowding(batch.len()) else {
            return Vec::new();
        };
        let keeps = (batch.len() / 2).max(place as usize + 1);
        let priority = requests[head].priority;
        let yields = |victim: &u32| {
            let victim = &requests[*victim];
            victim.parent == Some(parent) && victim.priority <= priority
        };
        let last = batch.running().rev().filter(yields);
        last.take(running.saturating_sub(keeps)).collect()
    }

    /// The running request that is retracted when pages run out: the least
    /// important one, or the last choice of a client request that has more than
    /// half of all slots, where that is as important.
    pub fn first_to_yield(&self, requests: &RequestTable, batch: &Batch) -> Option<u32> {
        let last = batch.last()?;
        let crowd = self.queue.crowding(batch.len()).map(|(parent, _)| parent);
        let priority = requests[last].priority;
        let of_crowd = |index: &u32| {
            let request = &requests[*index];
            crowd.is_some() && request.parent == crowd && request.priority == priority
        };
        batch.running().rev().find(of_crowd).or(Some(last))
    }

    /// Whether a waiting request could get a slot now.
    pub fn has_room_for(
        &self,
        head: u32,
        requests: &RequestTable,
        batch: &Batch,
        kv: &mut Kv,
    ) -> bool {
        batch.free_slots() > 0 && self.pages_short(requests, batch, kv, head, &[]) == 0
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

    /// Pages missing to admit a waiting request beside the running ones that are
    /// not `leaving`, before those give theirs back.
    fn pages_short(
        &self,
        requests: &RequestTable,
        batch: &Batch,
        kv: &mut Kv,
        index: u32,
        leaving: &[u32],
    ) -> u64 {
        let request = &requests[index];
        let matched = kv.match_len(request) / self.config.page_size;
        let need = if batch.len() == leaving.len() {
            kv.pages_for(request.least_tokens(&self.config.reserve))
        } else {
            let own = self.future_pages_of(request, kv).saturating_sub(matched);
            let wanted = |index: &u32| self.future_pages_of(&requests[*index], kv);
            let given_up = leaving.iter().map(wanted).fold(0, u32::saturating_add);
            let others = self.future_pages(requests, batch, kv);
            let others = others.saturating_sub(given_up);
            // Matched pages stop being evictable once the request is in.
            own.saturating_add(others).saturating_add(matched)
        };
        u64::from(need.saturating_sub(kv.available()))
    }
}

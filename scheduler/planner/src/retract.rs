//! Taking slot and pages back from running requests.

use crate::{Planner, table::Stage};

/// A waiting request may displace running ones whose priority is lower by this
/// much (SGLang's `--priority-scheduling-preemption-threshold`).
const PREEMPTION_THRESHOLD: i64 = 10;

impl Planner {
    /// Puts a running request back into the queue, in front of those of its
    /// priority that never ran. What it emitted stays emitted: its tokens become
    /// the prompt of its next admission, and positions count on. Results in
    /// flight are still taken before it queues.
    pub(crate) fn retract(&mut self, index: u32) {
        let running = self.running.iter().map(|index| &self.table[*index]);
        self.ratio.raise(running);
        self.leave_slot(index);
        let entry = &mut self.table[index];
        entry.stage = Stage::Draining;
        self.counters.retractions += 1;
        if entry.rows_in_flight == 0 {
            self.requeue(index);
        }
    }

    /// Queues a request again that has lost its slot.
    pub(crate) fn requeue(&mut self, index: u32) {
        let entry = &mut self.table[index];
        entry.stage = Stage::Waiting;
        entry.retracted = true;
        if !entry.rest.delivered {
            // The next prefill brings them again from their start.
            entry.rest.prompt_logprobs.clear();
        }
        self.queue.push(index, &self.table[index]);
    }

    /// Frees slot and pages of a running request.
    pub(crate) fn leave_slot(&mut self, index: u32) {
        let rank = self.table[index].rank();
        let at = self
            .running
            .partition_point(|other| self.table[*other].rank() < rank);
        debug_assert_eq!(self.running[at], index, "the running list is ranked");
        self.running.remove(at);
        let entry = &mut self.table[index];
        self.slots.close(entry.slot);
        self.kv.release(entry);
    }

    /// Makes room for the first waiting request where it outranks running ones
    /// by far: those are retracted, if that is enough to let it in.
    pub(crate) fn preempt(&mut self) {
        if !self.config.priority_scheduling || self.held {
            return;
        }
        let Some(head) = self.queue.first() else {
            return;
        };
        let outranked = |victim: u32| {
            let gap = i64::from(self.table[head].priority) - i64::from(self.table[victim].priority);
            gap >= PREEMPTION_THRESHOLD
        };
        let victims = self.running.iter().rev().copied();
        let victims: Vec<u32> = victims.take_while(|victim| outranked(*victim)).collect();
        let held: u64 = victims
            .iter()
            .map(|victim| self.table[*victim].pages.len() as u64)
            .sum();
        if victims.is_empty() || self.pages_short(head) > held || self.stands_back(head) {
            return;
        }
        for victim in victims {
            if self.slots.free() > 0 && self.pages_short(head) == 0 {
                return;
            }
            self.retract(victim);
            self.counters.preemptions += 1;
        }
    }

    /// The request would rather wait for its prefix than use the room.
    fn stands_back(&mut self, index: u32) -> bool {
        let mut prefilling = std::mem::take(&mut self.scratch.1);
        self.collect_prefilling(&mut prefilling);
        let stands_back = self.should_defer(index, &prefilling);
        self.scratch.1 = prefilling;
        stands_back
    }

    /// Pages missing to admit a waiting request beside the running ones.
    fn pages_short(&mut self, index: u32) -> u64 {
        let matched = self.kv.match_len(&self.table[index]) / self.config.page_size;
        let need = if self.running.is_empty() {
            self.kv
                .pages_for(self.table[index].least_tokens(&self.config.reserve))
        } else {
            let own = self.future_pages_of(index).saturating_sub(matched);
            // Matched pages stop being evictable once the request is in.
            own.saturating_add(self.future_pages())
                .saturating_add(matched)
        };
        u64::from(need.saturating_sub(self.kv.available()))
    }
}

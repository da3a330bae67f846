//! Who gives its slot to whom.

use super::{Admission, bind::allows};
use crate::{batch::Batch, dp_rank::DpRank, request::RequestTable};

/// A waiting request may displace running ones whose priority is lower by this
/// much (SGLang's `--priority-scheduling-preemption-threshold`).
const PREEMPTION_THRESHOLD: i64 = 10;

/// A request that may displace others.
#[derive(Debug)]
pub(crate) struct Preemption {
    /// The one that waits.
    pub head: u32,
    /// Where it may.
    pub dp_rank: usize,
    /// Whom, the least important first.
    pub victims: Vec<u32>,
}

impl Admission {
    /// The first waiting request, and the running ones that it may displace in the
    /// DP rank where those are least important; `None` when it has room without, or
    /// would have none after it.
    pub fn preemption(
        &mut self,
        requests: &RequestTable,
        ranks: &mut [DpRank],
    ) -> Option<Preemption> {
        if self.held {
            return None;
        }
        let (head, place) = self.queue.first()?;
        let running = ranks.iter().map(|rank| rank.batch.len()).sum();
        let mut best: Option<Preemption> = None;
        for (dp_rank, rank) in ranks.iter_mut().enumerate() {
            if !allows(&requests[head], dp_rank) {
                continue;
            }
            let mut victims = self.outranked(head, requests, &rank.batch);
            if victims.is_empty() {
                victims = self.crowding((head, place), running, requests, &rank.batch);
            }
            let Some(first) = victims.first() else {
                continue;
            };
            let importance = |best: &Preemption| requests[best.victims[0]].rank();
            let pages = |victim: &u32| requests[*victim].kv.page_count() as u64;
            let held: u64 = victims.iter().map(pages).sum();
            if best
                .as_ref()
                .is_some_and(|best| importance(best) > requests[*first].rank())
                || rank.pages_short(requests, head, &victims) > held
                || rank.would_defer(requests, head)
            {
                continue;
            }
            best = Some(Preemption {
                head,
                dp_rank,
                victims,
            });
        }
        let mut all = ranks.iter_mut().enumerate();
        best.filter(|_| {
            all.all(|(at, rank)| !allows(&requests[head], at) || !rank.has_room_for(head, requests))
        })
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
    fn crowding(
        &self,
        (head, place): (u32, u32),
        running: usize,
        requests: &RequestTable,
        batch: &Batch,
    ) -> Vec<u32> {
        let Some((parent, own)) = self.queue.crowding(running) else {
            return Vec::new();
        };
        let keeps = (running / 2).max(place as usize + 1);
        let priority = requests[head].priority;
        let yields = |victim: &u32| {
            let victim = &requests[*victim];
            victim.parent == Some(parent) && victim.priority <= priority
        };
        let last = batch.running().rev().filter(yields);
        last.take(own.saturating_sub(keeps)).collect()
    }

    /// The running request that is retracted when pages of a DP rank run out: the
    /// least important one, or the last choice of a client request that has more
    /// than half of all `running` slots, where that is as important.
    pub fn first_to_yield(
        &self,
        running: usize,
        requests: &RequestTable,
        batch: &Batch,
    ) -> Option<u32> {
        let last = batch.last()?;
        let crowd = self.queue.crowding(running).map(|(parent, _)| parent);
        let priority = requests[last].priority;
        let of_crowd = |index: &u32| {
            let request = &requests[*index];
            crowd.is_some() && request.parent == crowd && request.priority == priority
        };
        batch.running().rev().find(of_crowd).or(Some(last))
    }
}

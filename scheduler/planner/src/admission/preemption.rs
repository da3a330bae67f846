//! Choice of the running requests that give up their slots.

use super::{Admission, bind::allows};
use crate::{batch::Batch, dp_rank::DpRank, request::RequestTable};

/// Difference of priorities from which a waiting request may displace a running one (SGLang's
/// `--priority-scheduling-preemption-threshold`).
const PREEMPTION_THRESHOLD: i64 = 10;

/// A waiting request and the running requests that it may displace.
#[derive(Debug)]
pub(crate) struct Preemption {
    /// Table index of the waiting request.
    pub head: u32,
    /// DP rank of the victims.
    pub dp_rank: usize,
    /// Running requests to displace, the least important first.
    pub victims: Vec<u32>,
}

impl Admission {
    /// Returns the first waiting request and the running requests that it may displace. All
    /// victims are in one DP rank, the one whose victims are least important. Returns `None` if
    /// the waiting request has room without a victim, or if it would not run after all victims
    /// have left.
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
            let pages = |victim: &u32| u64::from(requests[*victim].kv.blocks());
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

    /// Returns the running requests whose priority is lower than the head's by the threshold.
    fn outranked(&self, head: u32, requests: &RequestTable, batch: &Batch) -> Vec<u32> {
        if !self.config.priority_scheduling {
            return Vec::new();
        }
        let priority = |index: u32| i64::from(requests[index].priority);
        let outranked = |victim: &u32| priority(head) - priority(*victim) >= PREEMPTION_THRESHOLD;
        batch.running().rev().take_while(outranked).collect()
    }

    /// Returns the running choices that a crowding client request gives up for the head. A
    /// client request crowds if it has more than half of all running slots. It gives up its
    /// last choices, but keeps half of the running slots, and more than the `place` slots of
    /// the head's own client request. Example: of 12 running slots it has 10, and the head's
    /// client request none; it gives up 4.
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

    /// Returns the running request to retract when a DP rank runs out of pages. It is the least
    /// important one. If a client request has more than half of all `running` slots and a
    /// choice as important as that one, it is that client request's last such choice.
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

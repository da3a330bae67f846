//! Admission of waiting requests to slots.

use std::cmp::Reverse;

use lockstep_types::SchedulePolicy;

use super::{
    Admission,
    bind::{allows, choose},
};
use crate::{
    Counters, DpRankCounters,
    dp_rank::{DpRank, Verdict},
    request::{RequestState, RequestTable},
};

/// Longest queue that is ordered by cached prefix. Matching all requests of a longer queue
/// would cost more than it brings.
const LPM_LONGEST_QUEUE: usize = 128;
/// Most known tokens of the requests that one plan opens, and bytes of their constraints. Both
/// travel whole, cached tokens too, and a plan has to fit a message.
const MOST_OPENED: u64 = 4 << 20;
/// Most candidates passed over in one step before admission stops.
const MOST_DEFERRED: usize = 32;

impl Admission {
    /// Opens slots in queue order while slots, budget and pages last. No request is admitted to
    /// a DP rank after an earlier request did not fit there.
    pub fn admit(
        &mut self,
        requests: &mut RequestTable,
        ranks: &mut [DpRank],
        counters: &mut Counters,
    ) {
        if self.queue.is_empty() || !ranks.iter().any(DpRank::is_open) {
            return;
        }
        self.collect_candidates(requests, ranks);
        for rank in &mut *ranks {
            rank.begin_admission(requests);
        }
        let (mut deferred, mut opened) = (0, 0);
        for at in 0..self.candidates.len() {
            if deferred > MOST_DEFERRED || opened >= MOST_OPENED {
                break;
            }
            let index = self.candidates[at];
            match try_admit(ranks, requests, index) {
                Some(Verdict::Admitted) => {
                    let request = &mut requests[index];
                    let rank = &mut ranks[request.dp_rank as usize];
                    self.left_queue(index, request, (counters, &mut rank.counters));
                    opened += carried(&requests[index]);
                }
                Some(Verdict::Deferred) => deferred += 1,
                Some(Verdict::Full) | None if !ranks.iter().any(DpRank::is_open) => break,
                Some(Verdict::Full) | None => {}
            }
        }
    }

    fn collect_candidates(&mut self, requests: &RequestTable, ranks: &mut [DpRank]) {
        let Self {
            queue,
            candidates,
            wanted,
            ..
        } = self;
        candidates.clear();
        // While admission is held, only requests that already ran are admitted.
        let allowed = |index: &u32| !self.held || requests[*index].retracted;
        let waiting = queue.iter().filter(allowed);
        let by_prefix =
            self.config.schedule_policy == SchedulePolicy::Lpm && queue.len() <= LPM_LONGEST_QUEUE;
        if by_prefix {
            candidates.extend(waiting);
            candidates.sort_by_cached_key(|index| {
                let request = &requests[*index];
                let place = queue.place(request);
                (
                    Reverse(request.priority),
                    place,
                    !request.retracted,
                    Reverse(longest_match(ranks, request)),
                )
            });
        } else {
            // As many candidates as there are free slots and may be passed over. Requests that
            // name a DP rank take no place of the others.
            let most = |rank: &DpRank| rank.batch.free_slots() + MOST_DEFERRED;
            wanted.clear();
            wanted.extend(ranks.iter().map(most));
            let mut anywhere: usize = wanted.iter().sum();
            for index in waiting {
                let left = match requests[index].rest.data_parallel_rank {
                    Some(dp_rank) => &mut wanted[dp_rank as usize],
                    None => &mut anywhere,
                };
                if *left > 0 {
                    *left -= 1;
                    candidates.push(index);
                }
                if anywhere == 0 {
                    break;
                }
            }
        }
    }

    /// Records that a request got its slot.
    fn left_queue(
        &mut self,
        index: u32,
        request: &mut RequestState,
        (counters, of_rank): (&mut Counters, &mut DpRankCounters),
    ) {
        self.arrivals += 1;
        self.queue.serve(request, self.arrivals);
        self.queue_deadlines
            .remove(request.rest.queue_deadline.take(), index);
        self.pace.record(self.now.0);
        if request.rest.cached_tokens.is_none() {
            let cached = request.kv.committed();
            request.rest.cached_tokens = Some(cached);
            let since = std::mem::replace(&mut request.rest.since, self.now);
            if !request.rest.is_probe {
                counters.queue.record(since, self.now);
                counters.prompt_tokens += u64::from(request.prompt_len);
                counters.cached_tokens += u64::from(cached);
                counters.count_found(request.kv.found());
                of_rank.prompt_tokens += u64::from(request.prompt_len);
                of_rank.cached_tokens += u64::from(cached);
            }
        }
    }
}

/// Returns about how much of a message a request's slot takes.
fn carried(request: &RequestState) -> u64 {
    let constraint = request.rest.generation.constraint.as_ref();
    let text = constraint.map_or(0, |constraint| constraint.text.len());
    u64::from(request.len()) + text as u64
}

/// Admits a request to the best DP rank that has room for it. Returns `None` if no DP rank that
/// the request may run in admits requests.
fn try_admit(ranks: &mut [DpRank], requests: &mut RequestTable, index: u32) -> Option<Verdict> {
    let mut verdict = None;
    while let Some(at) = choose(ranks, &requests[index]) {
        requests[index].dp_rank = at as u32;
        verdict = Some(ranks[at].try_admit(requests, index));
        if verdict != Some(Verdict::Full) {
            break;
        }
    }
    verdict
}

/// Returns the longest cached prefix of a request, in tokens, over the DP ranks that the
/// request may run in.
fn longest_match(ranks: &mut [DpRank], request: &RequestState) -> u32 {
    let ranks = (0..).zip(ranks).filter(|(at, _)| allows(request, *at));
    let matched = ranks.map(|(_, rank)| rank.kv.match_len(request));
    matched.max().unwrap_or(0)
}

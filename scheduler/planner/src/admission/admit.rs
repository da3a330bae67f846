//! Waiting requests get slots.

use std::cmp::Reverse;

use lockstep_types::SchedulePolicy;

use super::Admission;
use crate::{
    Counters,
    batch::{Batch, StepBuilder},
    kv::Kv,
    request::{RequestState, RequestTable},
};

/// Longest-prefix order is worked out for queues up to this length: matching all
/// of a longer one would cost more than it brings.
const LPM_LONGEST_QUEUE: usize = 128;
/// Known tokens of the requests that one plan opens: they travel whole, also where
/// most of them are cached, and a plan has to fit a message.
const MOST_OPENED_TOKENS: u64 = 4 << 20;
/// Candidates passed over in one step before admission stops.
const MOST_DEFERRED: usize = 32;
/// Waiting for another request's prefix pays from so many tokens on (SGLang's 32/32 rule).
const SHARED_TOKENS_THAT_PAY: u32 = 32;
/// After so many steps a request no longer waits for others' prefixes.
const MOST_DEFERRALS: u32 = 1024;

enum Verdict {
    Admitted,
    /// Its prefix is being computed: not now, but others may go.
    Deferred,
    /// It does not fit, and nobody overtakes it.
    Full,
}

impl Admission {
    /// Opens slots in queue order while slots, budget and pages last.
    pub fn admit(
        &mut self,
        requests: &mut RequestTable,
        batch: &mut Batch,
        kv: &mut Kv,
        counters: &mut Counters,
        step: &mut StepBuilder,
    ) {
        if step.budget == 0 || self.queue.is_empty() || batch.free_slots() == 0 {
            return;
        }
        self.collect_candidates(requests, batch, kv);
        self.collect_prefilling(requests, batch, kv);
        let mut future = self.future_pages(requests, batch, kv);
        let (mut deferred, mut opened) = (0, 0);
        for at in 0..self.candidates.len() {
            if step.budget == 0 || deferred > MOST_DEFERRED || opened >= MOST_OPENED_TOKENS {
                break;
            }
            let index = self.candidates[at];
            match self.try_admit(requests, batch, kv, step, index, future) {
                Verdict::Admitted => {
                    self.left_queue(index, &mut requests[index], counters);
                    opened += u64::from(requests[index].len());
                    future += self.future_pages_of(&requests[index], kv);
                    self.prefilling.push(index);
                }
                Verdict::Deferred => deferred += 1,
                Verdict::Full => break,
            }
        }
    }

    fn collect_candidates(&mut self, requests: &RequestTable, batch: &Batch, kv: &mut Kv) {
        let Self {
            queue, candidates, ..
        } = self;
        candidates.clear();
        // Held back are those that never ran.
        let allowed = |index: &u32| !self.held || requests[*index].retracted;
        let waiting = queue.iter().filter(allowed);
        let by_prefix =
            self.config.schedule_policy == SchedulePolicy::Lpm && queue.len() <= LPM_LONGEST_QUEUE;
        if by_prefix {
            candidates.extend(waiting);
            candidates.sort_by_cached_key(|index| {
                let request = &requests[*index];
                let matched = Reverse(kv.match_len(request));
                let place = queue.place(request);
                (
                    Reverse(request.priority),
                    place,
                    !request.retracted,
                    matched,
                )
            });
        } else {
            candidates.extend(waiting.take(batch.free_slots() + MOST_DEFERRED));
        }
    }

    /// Running requests whose prompt is not all in the cache yet.
    pub(super) fn collect_prefilling(&mut self, requests: &RequestTable, batch: &Batch, kv: &Kv) {
        self.prefilling.clear();
        if kv.caches_prefixes() {
            let computes = |index: &u32| {
                let request = &requests[*index];
                request.kv.committed() < request.prefill_end
            };
            self.prefilling.extend(batch.running().filter(computes));
        }
    }

    /// `future`: pages that the requests already in are expected to want still.
    fn try_admit(
        &mut self,
        requests: &mut RequestTable,
        batch: &mut Batch,
        kv: &mut Kv,
        step: &mut StepBuilder,
        index: u32,
        future: u32,
    ) -> Verdict {
        if batch.free_slots() == 0 {
            return Verdict::Full;
        }
        if self.should_defer(requests, kv, index) {
            requests[index].deferrals += 1;
            return Verdict::Deferred;
        }
        kv.match_prefix(&mut requests[index]);
        let alone = batch.is_empty();
        let fits = self.fits(&requests[index], kv, step, (!alone).then_some(future));
        if !fits || !batch.open(requests, index, step) {
            kv.unmatch(&mut requests[index].kv);
            return Verdict::Full;
        }
        // Without chunking a prompt is computed whole, however long.
        let budget = match self.config.chunked_prefill_size {
            Some(_) => step.budget,
            None => u32::MAX,
        };
        batch.plan_chunk(requests, kv, index, budget, step);
        Verdict::Admitted
    }

    /// Budget and pages. Alone, a request needs its prompt and one step only;
    /// beside others, what all of them are expected to want still.
    fn fits(
        &self,
        request: &RequestState,
        kv: &Kv,
        step: &StepBuilder,
        others: Option<u32>,
    ) -> bool {
        let whole = self.config.chunked_prefill_size.is_none();
        if whole && step.has_prefill && request.len() - request.kv.planned() > step.budget {
            return false;
        }
        let need = match others {
            None => kv.missing(&request.kv, request.least_tokens(&self.config.reserve)),
            Some(future) => self.future_pages_of(request, kv).saturating_add(future),
        };
        need <= kv.available()
    }

    /// Another request computes a good part of this one's prefix right now:
    /// standing back a step or more saves computing it twice.
    pub(super) fn should_defer(&self, requests: &RequestTable, kv: &mut Kv, index: u32) -> bool {
        let request = &requests[index];
        if self.prefilling.is_empty() || request.deferrals >= MOST_DEFERRALS {
            return false;
        }
        let shared = self.prefilling.iter().map(|other| {
            let other = &requests[*other];
            kv.shared_len(&other.tokens[..other.prefill_end as usize], request)
        });
        let shared = shared.max().unwrap_or(0);
        shared >= SHARED_TOKENS_THAT_PAY
            && shared - shared.min(kv.match_len(request)) >= SHARED_TOKENS_THAT_PAY
    }

    /// A request got its slot.
    fn left_queue(&mut self, index: u32, request: &mut RequestState, counters: &mut Counters) {
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
            }
        }
    }

    /// Pages that running requests are expected to want still.
    pub(super) fn future_pages(&self, requests: &RequestTable, batch: &Batch, kv: &Kv) -> u32 {
        batch
            .running()
            .map(|index| self.future_pages_of(&requests[index], kv))
            .fold(0, u32::saturating_add)
    }

    /// Pages that one request is expected to want beyond what it holds.
    pub(super) fn future_pages_of(&self, request: &RequestState, kv: &Kv) -> u32 {
        let (reserve, depth) = (&self.config.reserve, request.max_depth);
        let reserve =
            reserve.alloc_len_at(depth) + reserve.commit_lag_at(depth, self.config.overlap);
        self.ratio.future_pages(kv, request, reserve)
    }
}

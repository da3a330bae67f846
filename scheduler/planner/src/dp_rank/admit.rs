//! Admission of one waiting request to a DP rank.

use super::DpRank;
use crate::request::RequestTable;

/// Number of shared tokens from which waiting for another request's prefix pays (SGLang's 32/32
/// rule).
const SHARED_TOKENS_THAT_PAY: u32 = 32;
/// Number of steps after which a request no longer waits for other requests' prefixes.
const MOST_DEFERRALS: u32 = 1024;

/// Result of an attempt to admit a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    /// Another request computes its prefix. The request waits, and others may go first.
    Deferred,
    /// The request does not fit, and no other one overtakes it.
    Full,
}

impl DpRank {
    /// Begins the admission of requests, which lasts until the step is sent.
    pub fn begin_admission(&mut self, requests: &RequestTable) {
        self.collect_prefilling(requests);
        self.future = self.future_pages(requests);
    }

    /// Returns true if slots and budget are left, and no request waits for pages.
    pub fn is_open(&self) -> bool {
        let next = &self.batch.next;
        !next.full && next.budget > 0 && self.batch.free_slots() > 0
    }

    /// Gives a request a slot, and the rows that budget and pages allow.
    pub fn try_admit(&mut self, requests: &mut RequestTable, index: u32) -> Verdict {
        if self.should_defer(requests, index) {
            requests[index].deferrals += 1;
            return Verdict::Deferred;
        }
        let pauses = self.batch.next.draft_steps == 0;
        self.kv.match_prefix(&mut requests[index], pauses);
        let fits = self.fits(&requests[index]);
        if !fits || !self.batch.open(requests, &mut self.kv, index) {
            self.kv.unmatch(&mut requests[index].kv);
            self.batch.next.full = true;
            return Verdict::Full;
        }
        // Without chunking a prompt is computed whole, however long.
        let budget = match self.config.chunked_prefill_size {
            Some(_) => self.batch.next.budget,
            None => u32::MAX,
        };
        self.batch.plan_chunk(requests, &mut self.kv, index, budget);
        let wanted = self.future_pages_of(&requests[index]);
        self.future = self.future.saturating_add(wanted);
        self.prefilling.push(index);
        Verdict::Admitted
    }

    /// Returns true if the request would wait for its prefix, even if there is room.
    pub fn would_defer(&mut self, requests: &RequestTable, index: u32) -> bool {
        self.collect_prefilling(requests);
        self.should_defer(requests, index)
    }

    /// Lists the running requests whose prompt is not yet all in the cache.
    fn collect_prefilling(&mut self, requests: &RequestTable) {
        self.prefilling.clear();
        if self.kv.caches_prefixes() {
            let computes = |index: &u32| {
                let request = &requests[*index];
                request.kv.committed() < request.prefill_end
            };
            self.prefilling
                .extend(self.batch.running().filter(computes));
        }
    }

    /// Returns true if another request is computing a large part of this request's prefix.
    /// Waiting a step or more then saves computing that part twice.
    fn should_defer(&mut self, requests: &RequestTable, index: u32) -> bool {
        let request = &requests[index];
        if self.prefilling.is_empty() || request.deferrals >= MOST_DEFERRALS {
            return false;
        }
        let others = self.prefilling.iter();
        let shared = others.map(|other| self.kv.shared_len(&requests[*other], request));
        let shared = shared.max().unwrap_or(0);
        shared >= SHARED_TOKENS_THAT_PAY
            && shared - shared.min(self.kv.match_len(request)) >= SHARED_TOKENS_THAT_PAY
    }
}

//! Room for a waiting request beside those that run.

use super::DpRank;
use crate::request::{RequestState, RequestTable};

impl DpRank {
    /// Returns true if budget and pages suffice for a request whose prefix is matched. A
    /// request that is alone needs pages for its prompt and one step only. Beside others, there
    /// must be pages for everything that all of them are expected to want still.
    pub(super) fn fits(&self, request: &RequestState) -> bool {
        let step = &self.batch.next;
        let whole = self.config.chunked_prefill_size.is_none();
        if whole && step.has_prefill && request.len() - request.kv.planned() > step.budget {
            return false;
        }
        let need = if self.batch.is_empty() {
            let least = request.least_tokens(&self.config.reserve);
            self.kv.missing(&request.kv, least)
        } else {
            self.future_pages_of(request).saturating_add(self.future)
        };
        need <= self.kv.available()
    }

    /// Returns true if a waiting request could get a slot now.
    pub fn has_room_for(&mut self, head: u32, requests: &RequestTable) -> bool {
        self.batch.free_slots() > 0 && self.pages_short(requests, head, &[]) == 0
    }

    /// Returns the number of missing pages for a waiting request beside the running ones. The
    /// `leaving` requests do not count as running, but their pages are not yet given back.
    pub fn pages_short(&mut self, requests: &RequestTable, index: u32, leaving: &[u32]) -> u64 {
        let request = &requests[index];
        let matched = self.kv.match_len(request) / self.config.page_size;
        let need = if self.batch.len() == leaving.len() {
            let least = request.least_tokens(&self.config.reserve);
            self.kv.pages_for(least)
        } else {
            let own = self.future_pages_of(request).saturating_sub(matched);
            let wanted = |index: &u32| self.future_pages_of(&requests[*index]);
            let given_up = leaving.iter().map(wanted).fold(0, u32::saturating_add);
            let others = self.future_pages(requests).saturating_sub(given_up);
            // Matched pages stop being evictable once the request is in.
            own.saturating_add(others).saturating_add(matched)
        };
        u64::from(need.saturating_sub(self.kv.available()))
    }

    /// Returns the pages that running requests are expected to want still.
    pub(super) fn future_pages(&self, requests: &RequestTable) -> u32 {
        let running = self.running(requests);
        let wanted = running.map(|request| self.future_pages_of(request));
        wanted.fold(0, u32::saturating_add)
    }

    /// Returns the pages that one request is expected to want beyond those that it holds.
    pub(super) fn future_pages_of(&self, request: &RequestState) -> u32 {
        let (reserve, depth) = (&self.config.reserve, request.max_depth);
        let reserve =
            reserve.alloc_len_at(depth) + reserve.commit_lag_at(depth, self.config.overlap);
        self.ratio.future_pages(&self.kv, request, reserve)
    }
}

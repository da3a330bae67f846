//! Rows that running requests add to a step: decode rows, and the next chunks of prompts.

use lockstep_types::step::StateKeep;

use super::{Batch, RowInFlight};
use crate::{
    kv::{Kv, RowSpan},
    request::{RequestState, RequestTable},
};

/// Pages granted to decode rows. Tests grant too few to prove that they would notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// All slots that the row may write.
    Exact,
    /// `W` slots from the committed length, as if no step were in flight.
    WithoutLag,
    /// One slot from where the slot can stand, as if nothing were drafted.
    One,
}

impl Batch {
    /// Adds a row for each request that decodes. The row's pages cover everything that the step
    /// may write; `planned` is the furthest that the slot can stand by then. The budget that
    /// the rows leave is for prompts.
    pub fn plan_decodes(&mut self, requests: &mut RequestTable, kv: &mut Kv) {
        for at in 0..self.running.len() {
            let index = self.running[at];
            let request = &mut requests[index];
            if !request.decodes() {
                continue;
            }
            let depth = self.depth(request);
            let to = self.written_up_to(request);
            if !kv.grow(&mut request.kv, to) {
                continue;
            }
            let max_tokens = self.config.reserve.max_commit_at(depth);
            let before = request.kv.planned();
            request.kv.plan(max_tokens);
            let row = RowInFlight {
                index,
                arrival: request.arrival,
                slot: request.slot,
                prefill_to: None,
                sample: true,
                depth,
                pauses: self.next.draft_steps == 0,
                max_tokens,
                last_chunk: false,
            };
            let keeps = self.keeps(kv, request, before, true);
            self.add_row(request, row, 0, keeps);
        }
        // Decode rows never take the whole budget, or new requests would wait for old ones to
        // end.
        let budget = self.config.prefill_budget();
        let decodes = u32::try_from(self.next.len()).unwrap_or(u32::MAX);
        self.next.budget = budget.saturating_sub(decodes).max(budget.div_ceil(4));
    }

    /// Continues prompts in rank order while budget and pages last.
    pub fn plan_prefills(&mut self, requests: &mut RequestTable, kv: &mut Kv) {
        for at in 0..self.running.len() {
            let request = &requests[self.running[at]];
            if self.next.budget == 0 {
                return;
            }
            if request.prefilling() {
                self.plan_chunk(requests, kv, self.running[at], self.next.budget);
            }
        }
    }

    /// Adds a row for the prompt's next tokens, as far as `budget` and pages go.
    pub fn plan_chunk(
        &mut self,
        requests: &mut RequestTable,
        kv: &mut Kv,
        index: u32,
        budget: u32,
    ) {
        let request = &mut requests[index];
        let chunk = self.chunk(request, kv, budget);
        let to = request.kv.planned() + chunk;
        if chunk == 0 || !kv.grow(&mut request.kv, to) {
            return;
        }
        request.kv.plan(chunk);
        let keeps = self.keeps(kv, request, to - chunk, false);
        let last_chunk = to == request.prefill_end;
        let sample = last_chunk && request.remaining() > 0;
        let row = RowInFlight {
            index,
            arrival: request.arrival,
            slot: request.slot,
            prefill_to: Some(to),
            sample,
            depth: 0,
            pauses: self.next.draft_steps == 0,
            max_tokens: u32::from(sample),
            last_chunk,
        };
        self.add_row(request, row, chunk, keeps);
        self.next.budget = self.next.budget.saturating_sub(chunk);
        self.next.has_prefill = true;
    }

    /// Returns how many of the prompt's next tokens fit budget and pages. The prefix cache
    /// takes whole pages. So a chunk that is not the prompt's last ends at the end of a page,
    /// if it reaches one.
    fn chunk(&self, request: &RequestState, kv: &Kv, budget: u32) -> u32 {
        let page = u64::from(self.config.page_size);
        let from = u64::from(request.kv.planned());
        let left = u64::from(request.prefill_end) - from;
        let mut chunk = left.min(u64::from(budget)).min(kv.room(&request.kv));
        if chunk < left {
            let end = (from + chunk) / page * page;
            chunk = if end > from { end - from } else { chunk };
        }
        // The chunk is at most `left`, which fits a `u32`.
        chunk as u32
    }

    // Copied into both callers: a call would move the row through memory once more for every
    // request of every step.
    #[inline(always)]
    fn add_row(
        &mut self,
        request: &mut RequestState,
        row: RowInFlight,
        prefill_len: u32,
        keeps: Vec<StateKeep>,
    ) {
        request.rows_in_flight += 1;
        request.samples_in_flight += u32::from(row.sample);
        let new_pages = self.new_pages(request);
        self.next.extend(row, prefill_len, new_pages, keeps);
    }

    /// Returns the copies of its state that a request's next row writes on its way from `before`,
    /// the furthest position that its slot can have now, to the planned one.
    fn keeps(
        &mut self,
        kv: &mut Kv,
        request: &mut RequestState,
        before: u32,
        decodes: bool,
    ) -> Vec<StateKeep> {
        if !kv.has_states() {
            return Vec::new();
        }
        let mut list = self.keep_lists.pop().unwrap_or_default();
        list.clear();
        let row = RowSpan {
            before,
            after: request.kv.planned(),
            decodes,
            longest: request.prompt_len.saturating_add(request.max_new),
        };
        kv.plan_keeps(&mut request.kv, row, &mut list);
        list
    }

    /// Returns the pages that workers do not know yet.
    fn new_pages(&mut self, request: &mut RequestState) -> Vec<u32> {
        if !request.kv.has_unsent_pages() {
            return Vec::new();
        }
        let mut list = self.page_list();
        let (groups, windows) = (self.config.kv_groups as usize, self.config.windows.len());
        request.kv.take_unsent_pages(groups, windows, &mut list);
        list
    }

    /// Returns an empty list, in a reused buffer if there is one.
    pub fn page_list(&mut self) -> Vec<u32> {
        let mut list = self.page_lists.pop().unwrap_or_default();
        list.clear();
        list
    }

    /// Returns the number of new pages that the next decode rows need.
    pub fn decode_pages(&self, requests: &RequestTable, kv: &Kv) -> u32 {
        self.running()
            .map(|index| &requests[index])
            .filter(|request| request.decodes())
            .map(|request| kv.missing(&request.kv, self.written_up_to(request)))
            .sum()
    }

    /// Returns the most draft steps that a request's next row may take.
    fn depth(&self, request: &RequestState) -> u32 {
        self.next.draft_steps.min(request.max_depth)
    }

    /// Returns the furthest position at which the writes of the next decode row can end.
    fn written_up_to(&self, request: &RequestState) -> u32 {
        let alloc_len = self.config.reserve.alloc_len_at(self.depth(request));
        #[cfg(test)]
        match self.grant {
            Grant::Exact => {}
            Grant::WithoutLag => return request.kv.committed() + alloc_len,
            Grant::One => return request.kv.planned() + 1,
        }
        request.kv.planned() + alloc_len
    }
}

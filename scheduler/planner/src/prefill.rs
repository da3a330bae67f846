//! Prompts under way: the next chunk of each.

use crate::{
    Planner,
    flight::{Draft, Row},
};

impl Planner {
    /// Continues prompts in rank order while budget and pages last.
    pub(crate) fn plan_prefills(&mut self, draft: &mut Draft) {
        for at in 0..self.running.len() {
            let index = self.running[at];
            if draft.budget == 0 {
                return;
            }
            if self.table[index].prefilling() {
                let chunk = self.chunk(index, draft.budget);
                self.push_chunk(draft, index, chunk, false);
            }
        }
    }

    /// How many of the prompt's next tokens fit budget and pages. A chunk that
    /// is not the last ends with a page if it reaches one, for the cache takes
    /// whole pages.
    pub(crate) fn chunk(&self, index: u32, budget: u32) -> u32 {
        let entry = &self.table[index];
        let page = u64::from(self.config.page_size);
        let pages = entry.pages.len() as u64 + u64::from(self.kv.available());
        let left = u64::from(entry.prefill_end - entry.planned);
        let from = u64::from(entry.planned);
        let room = (pages * page).saturating_sub(from);
        let mut chunk = left.min(u64::from(budget)).min(room);
        if chunk < left {
            let end = (from + chunk) / page * page;
            chunk = if end > from { end - from } else { chunk };
        }
        // At most `left`, which is a `u32`.
        chunk as u32
    }

    /// Adds the row for the next `chunk` tokens; nothing if `chunk` is 0. A
    /// slot's first row brings the pages of its cached prefix too.
    pub(crate) fn push_chunk(&mut self, draft: &mut Draft, index: u32, chunk: u32, first: bool) {
        let entry = &mut self.table[index];
        let to = entry.planned + chunk;
        if chunk == 0 {
            return;
        }
        let Some(held) = self.kv.grow(&mut entry.pages, to) else {
            return;
        };
        let last_chunk = to == entry.prefill_end;
        let sample = last_chunk && entry.remaining() > 0;
        let row = Row {
            index,
            arrival: entry.arrival,
            slot: entry.slot,
            prefill_to: Some(to),
            sample,
            depth: 0,
            most: u32::from(sample),
            last_chunk,
        };
        entry.planned = to;
        entry.rows_in_flight += 1;
        entry.samples_in_flight += u32::from(row.sample);
        let pages = &entry.pages[if first { 0 } else { held }..];
        draft.push(row, chunk, self.flight.page_list(pages));
        draft.budget = draft.budget.saturating_sub(chunk);
        draft.has_prefill = true;
        self.counters.prefill_tokens += u64::from(chunk);
    }
}

//! Decode rows: each running request whose prompt is in brings one.

use crate::{
    Planner,
    flight::{Draft, Row},
    table::Entry,
};

/// What rows are granted: less than needed shows that the tests would notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// What the row may write.
    Exact,
    /// `W` from what is committed, as if nothing were in flight.
    WithoutLag,
    /// One slot from where the slot can stand, as if nothing were drafted.
    One,
}

impl Planner {
    /// One row for each request that decodes. Its pages cover all that the step
    /// may write: `planned` is as far as the slot can stand by then.
    pub(crate) fn plan_decodes(&mut self, draft: &mut Draft) {
        self.make_room_for_decodes();
        for at in 0..self.running.len() {
            let index = self.running[at];
            let entry = &self.table[index];
            if !entry.decodes() {
                continue;
            }
            let depth = self.depth(entry);
            let to = self.written_up_to(entry);
            let entry = &mut self.table[index];
            let Some(held) = self.kv.grow(&mut entry.pages, to) else {
                continue;
            };
            let most = self.config.reserve.max_commit_at(depth);
            entry.planned += most;
            entry.rows_in_flight += 1;
            entry.samples_in_flight += 1;
            let row = Row {
                index,
                arrival: entry.arrival,
                slot: entry.slot,
                prefill_to: None,
                sample: true,
                depth,
                most,
                last_chunk: false,
            };
            draft.push(row, 0, self.flight.page_list(&entry.pages[held..]));
            self.counters.decode_rows += 1;
        }
    }

    /// Draft steps that a request's next row may take.
    fn depth(&self, entry: &Entry) -> u32 {
        self.draft_steps.min(entry.max_depth)
    }

    /// Where the next decode row's writes end at the latest.
    fn written_up_to(&self, entry: &Entry) -> u32 {
        let alloc_len = self.config.reserve.alloc_len_at(self.depth(entry));
        #[cfg(test)]
        match self.grant {
            Grant::Exact => {}
            Grant::WithoutLag => return entry.committed + alloc_len,
            Grant::One => return entry.planned + 1,
        }
        entry.planned + alloc_len
    }

    /// Retracts from the end of the ranking until all decode rows fit.
    fn make_room_for_decodes(&mut self) {
        while self.decode_pages() > self.kv.available() && self.running.len() > 1 {
            if let Some(last) = self.running.last().copied() {
                self.retract(last);
            }
        }
    }

    /// New pages that the next decode rows need.
    pub(crate) fn decode_pages(&self) -> u32 {
        self.running
            .iter()
            .map(|index| &self.table[*index])
            .filter(|entry| entry.decodes())
            .map(|entry| {
                self.kv
                    .missing(entry.pages.len(), self.written_up_to(entry))
            })
            .sum()
    }
}

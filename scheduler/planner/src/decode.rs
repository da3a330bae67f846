//! Decode rows: each running request whose prompt is in brings one.

use crate::{
    Planner,
    flight::{Draft, Row},
};

impl Planner {
    /// One row for each request that decodes. Its pages cover all that the step
    /// may write: `planned` is as far as the slot can stand by then.
    pub(crate) fn plan_decodes(&mut self, draft: &mut Draft) {
        self.make_room_for_decodes();
        let Self {
            running,
            table,
            kv,
            flight,
            ..
        } = self;
        for index in running.iter().copied() {
            let entry = &mut table[index];
            if !entry.decodes() {
                continue;
            }
            let Some(held) = kv.grow(&mut entry.pages, entry.planned + self.alloc_len) else {
                continue;
            };
            entry.planned += self.max_commit;
            entry.rows_in_flight += 1;
            entry.samples_in_flight += 1;
            let row = Row {
                index,
                arrival: entry.arrival,
                slot: entry.slot,
                prefill_to: None,
                sample: true,
                last_chunk: false,
            };
            draft.push(row, 0, flight.page_list(&entry.pages[held..]));
            self.counters.decode_rows += 1;
        }
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
                    .missing(entry.pages.len(), entry.planned + self.alloc_len)
            })
            .sum()
    }
}

//! A DP rank's part of the step that is being planned.

use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen, StateKeep};

use crate::{
    kv::{DecodeRow, Kv},
    request::{RequestState, Stage},
};

/// Facts of one extend that the planner keeps until its result is back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowInFlight {
    /// Table index. With `arrival` it tells whether the request still lives.
    pub index: u32,
    pub arrival: u64,
    pub slot: u32,
    /// KV length after this prefill chunk; `None` for a decode row.
    pub prefill_to: Option<u32>,
    /// True if its result has tokens.
    pub sample: bool,
    /// Most draft steps of the row.
    pub depth: u32,
    /// True if the row's step drafts nothing.
    pub pauses: bool,
    /// Most tokens of its result.
    pub max_tokens: u32,
    /// True if the prompt ends with this row: then prompt log-probabilities are complete.
    pub last_chunk: bool,
}

impl RowInFlight {
    /// Makes the row's KV final, when its result of `tokens` tokens is here; `drafts` says if it
    /// verified drafts. A request that has lost its pages gets nothing.
    pub fn commit(&self, kv: &mut Kv, request: &mut RequestState, tokens: u32, drafts: bool) {
        request.rows_in_flight -= 1;
        request.samples_in_flight -= u32::from(self.sample);
        if request.stage != Stage::Running {
            return;
        }
        let (max_tokens, pauses) = (self.max_tokens, self.pauses);
        let row = DecodeRow {
            max_tokens,
            pauses,
            drafts,
        };
        match self.prefill_to {
            Some(to) => kv.commit_prefill(&mut request.kv, to, pauses),
            None => kv.commit_decode(&mut request.kv, tokens, row),
        }
    }
}

/// A part that is being planned.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub plan: PlanPart,
    pub rows: Vec<RowInFlight>,
    /// Draft steps of the step's decode rows.
    pub draft_steps: u32,
    /// Prompt tokens that still fit.
    pub budget: u32,
    /// True if the part has a chunk of a prompt already.
    pub has_prefill: bool,
    /// True if a waiting request did not fit. Then no other request is admitted.
    pub full: bool,
}

impl Part {
    /// Empties the part for a step of `draft_steps` draft steps. Keeps its buffers.
    pub fn begin(&mut self, draft_steps: u32) {
        self.plan.opens.clear();
        self.plan.extends.clear();
        self.rows.clear();
        self.draft_steps = draft_steps;
        self.budget = 0;
        self.has_prefill = false;
        self.full = false;
    }

    /// Returns the number of rows so far.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the number of rows that sample. Their requests decode next.
    pub fn samples(&self) -> u32 {
        self.rows.iter().filter(|row| row.sample).count() as u32
    }

    pub fn open(&mut self, open: SlotOpen) {
        self.plan.opens.push(open);
    }

    pub fn extend(
        &mut self,
        row: RowInFlight,
        prefill_len: u32,
        new_pages: Vec<u32>,
        keeps: Vec<StateKeep>,
    ) {
        self.plan.extends.push(SlotExtend {
            slot: row.slot,
            prefill_len,
            sample: row.sample,
            new_pages,
            keeps,
        });
        self.rows.push(row);
    }
}

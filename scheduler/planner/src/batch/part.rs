//! A DP rank's part of the step that is being planned.

use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen};

use crate::{
    kv::Kv,
    request::{RequestState, Stage},
};

/// What the planner must know of one extend until its result is back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowInFlight {
    /// Table index, with `arrival` to tell whether the request still lives.
    pub index: u32,
    pub arrival: u64,
    pub slot: u32,
    /// KV length after this prefill chunk; `None` for a decode row.
    pub prefill_to: Option<u32>,
    /// Its result has tokens.
    pub sample: bool,
    /// Draft steps it may take.
    pub depth: u32,
    /// Its step drafts nothing.
    pub pauses: bool,
    /// Tokens of its result at the most.
    pub max_tokens: u32,
    /// The prompt ends here: prompt log-probabilities are complete.
    pub last_chunk: bool,
}

impl RowInFlight {
    /// The result is here, with so many tokens: what the row computed is final,
    /// unless the request has lost its pages.
    pub fn commit(&self, kv: &Kv, request: &mut RequestState, tokens: u32) {
        request.rows_in_flight -= 1;
        request.samples_in_flight -= u32::from(self.sample);
        if request.stage == Stage::Running {
            match self.prefill_to {
                Some(to) => kv.commit_prefill(&mut request.kv, to, self.pauses),
                None => kv.commit_decode(&mut request.kv, tokens, self.max_tokens, self.pauses),
            }
        }
    }
}

/// A part in the making.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub plan: PlanPart,
    pub rows: Vec<RowInFlight>,
    /// Draft steps of the step's decode rows.
    pub draft_steps: u32,
    /// Prompt tokens that still fit.
    pub budget: u32,
    /// A chunk of a prompt is in it already.
    pub has_prefill: bool,
    /// A waiting request did not fit, and nobody overtakes it.
    pub full: bool,
}

impl Part {
    /// Empties it, for a step of so many draft steps; buffers stay.
    pub fn begin(&mut self, draft_steps: u32) {
        self.plan.opens.clear();
        self.plan.extends.clear();
        self.rows.clear();
        self.draft_steps = draft_steps;
        self.budget = 0;
        self.has_prefill = false;
        self.full = false;
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows that decode after it.
    pub fn samples(&self) -> u32 {
        self.rows.iter().filter(|row| row.sample).count() as u32
    }

    pub fn open(&mut self, open: SlotOpen) {
        self.plan.opens.push(open);
    }

    pub fn extend(&mut self, row: RowInFlight, prefill_len: u32, new_pages: Vec<u32>) {
        self.plan.extends.push(SlotExtend {
            slot: row.slot,
            prefill_len,
            sample: row.sample,
            new_pages,
        });
        self.rows.push(row);
    }
}

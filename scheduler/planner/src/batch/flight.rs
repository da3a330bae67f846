//! Steps that are planned and not completed, and the buffers they reuse.

use std::collections::VecDeque;

use lockstep_adaptive::DepthRange;
use lockstep_types::step::{PlanPart, SlotExtend, SlotOpen, SlotOutput, StepPlan, StepResult};

use super::slots::Slots;
use crate::{
    PlannerError,
    kv::Kv,
    request::{RequestState, Stage, len_u32},
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

/// One step on its way.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    step: u64,
    rows: Vec<RowInFlight>,
}

impl StepInFlight {
    /// Each row with its output.
    pub fn results(
        &self,
        outputs: Vec<Vec<SlotOutput>>,
    ) -> impl Iterator<Item = (&RowInFlight, Option<SlotOutput>)> {
        let mut outputs = outputs.into_iter().flatten().peekable();
        self.rows
            .iter()
            .map(move |row| (row, outputs.next_if(|output| output.slot == row.slot)))
    }

    /// Outputs stand in the rows' order. A row that samples has one, with at
    /// least a token, or with none where its logits were not numbers; more than
    /// one token only after as many drafted ones, and those only where it may
    /// draft.
    fn check(&self, result: &StepResult) -> Result<(), String> {
        let mut outputs = result.outputs.iter().flatten().peekable();
        for row in &self.rows {
            let slot = row.slot;
            let Some(output) = outputs.next_if(|output| output.slot == slot) else {
                if row.sample {
                    return Err(format!("slot {slot} brought nothing"));
                }
                continue;
            };
            let depth = output.draft_depth;
            if depth > row.depth || (depth == 0) != (output.draft_tokens == 0) {
                return Err(format!(
                    "slot {slot} drafted {} tokens in {depth} steps, at most {} steps",
                    output.draft_tokens, row.depth
                ));
            }
            let count = len_u32(&output.token_ids);
            let most = row.max_tokens.min(1 + depth);
            if count > most {
                return Err(format!(
                    "slot {slot} brought {count} tokens, at most {most}"
                ));
            }
        }
        match outputs.next() {
            Some(output) => Err(format!("slot {} was not in the plan", output.slot)),
            None => Ok(()),
        }
    }
}

/// A step in the making.
#[derive(Debug, Default)]
pub(crate) struct StepBuilder {
    part: PlanPart,
    rows: Vec<RowInFlight>,
    /// Prompt tokens that still fit.
    pub budget: u32,
    /// A chunk of a prompt is in it already.
    pub has_prefill: bool,
}

impl StepBuilder {
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
        self.part.opens.push(open);
    }

    pub fn extend(&mut self, row: RowInFlight, prefill_len: u32, new_pages: Vec<u32>) {
        self.part.extends.push(SlotExtend {
            slot: row.slot,
            prefill_len,
            sample: row.sample,
            new_pages,
        });
        self.rows.push(row);
    }
}

/// Steps in flight, oldest first.
#[derive(Debug, Default)]
pub(super) struct Flight {
    steps: VecDeque<StepInFlight>,
    last_step: u64,
    parts: Vec<PlanPart>,
    rows: Vec<Vec<RowInFlight>>,
    page_lists: Vec<Vec<u32>>,
}

/// More spare buffers than this are of no use: two steps in flight, one in the
/// making, one on its way back.
const SPARE_PLANS: usize = 4;

impl Flight {
    /// Steps planned and not completed.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Rows of all steps in flight.
    pub fn rows(&self) -> impl Iterator<Item = &RowInFlight> {
        self.steps.iter().flat_map(|step| &step.rows)
    }

    /// An empty step in reused buffers.
    pub fn begin(&mut self) -> StepBuilder {
        StepBuilder {
            part: self.parts.pop().unwrap_or_default(),
            rows: self.rows.pop().unwrap_or_default(),
            budget: 0,
            has_prefill: false,
        }
    }

    /// Numbers the step, which is sure to be sent, and remembers its rows.
    pub fn launch(
        &mut self,
        step: StepBuilder,
        depth: (u32, DepthRange),
        slots: &mut Slots,
    ) -> StepPlan {
        self.last_step += 1;
        let mut part = step.part;
        slots.drain_closes(&mut part.closes);
        self.steps.push_back(StepInFlight {
            step: self.last_step,
            rows: step.rows,
        });
        StepPlan {
            step: self.last_step,
            draft_steps: depth.0,
            depth_range: depth.1,
            parts: vec![part],
        }
    }

    /// Drops a step that stayed empty.
    pub fn discard(&mut self, step: StepBuilder) {
        self.recycle_part(step.part);
        self.recycle_rows(step.rows);
    }

    /// Takes the oldest step out, if the result is its own and fits it.
    pub fn take(&mut self, result: &StepResult) -> Result<StepInFlight, PlannerError> {
        let expected = self.steps.front().map(|step| step.step);
        let oldest = self.steps.pop_front_if(|step| step.step == result.step);
        let step = oldest.ok_or(PlannerError::StepOrder {
            expected,
            got: result.step,
        })?;
        match step.check(result) {
            Ok(()) => Ok(step),
            Err(message) => {
                self.steps.push_front(step);
                Err(PlannerError::BadResult {
                    step: result.step,
                    message,
                })
            }
        }
    }

    /// Keeps a completed step's buffers for later.
    pub fn recycle(&mut self, step: StepInFlight) {
        self.recycle_rows(step.rows);
    }

    /// Keeps a plan's buffers for later.
    pub fn recycle_plan(&mut self, plan: StepPlan) {
        plan.parts
            .into_iter()
            .for_each(|part| self.recycle_part(part));
    }

    fn recycle_part(&mut self, mut part: PlanPart) {
        let most_lists = part.extends.capacity().max(64);
        for extend in part.extends.drain(..) {
            if extend.new_pages.capacity() > 0 && self.page_lists.len() < most_lists {
                self.page_lists.push(extend.new_pages);
            }
        }
        if self.parts.len() < SPARE_PLANS {
            part.closes.clear();
            part.opens.clear();
            self.parts.push(part);
        }
    }

    fn recycle_rows(&mut self, mut rows: Vec<RowInFlight>) {
        if self.rows.len() < SPARE_PLANS {
            rows.clear();
            self.rows.push(rows);
        }
    }

    /// A list with these pages, in a reused buffer if there are any.
    pub fn page_list(&mut self, pages: &[u32]) -> Vec<u32> {
        if pages.is_empty() {
            return Vec::new();
        }
        let mut list = self.page_lists.pop().unwrap_or_default();
        list.clear();
        list.extend_from_slice(pages);
        list
    }

    /// Forgets all steps; the next one is number 1 again.
    pub fn reset(&mut self) {
        self.steps.clear();
        self.last_step = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowInFlight = RowInFlight {
        index: 0,
        arrival: 1,
        slot: 0,
        prefill_to: Some(4),
        sample: false,
        depth: 0,
        pauses: false,
        max_tokens: 0,
        last_chunk: false,
    };

    /// Room in the buffers of a new step: rows, extends, and a list of one page.
    fn room(flight: &mut Flight) -> (StepBuilder, [usize; 3]) {
        let step = flight.begin();
        let pages = flight.page_list(&[7]).capacity();
        let room = [step.rows.capacity(), step.part.extends.capacity(), pages];
        (step, room)
    }

    #[test]
    fn buffers_are_reused() {
        let mut flight = Flight::default();
        let (mut step, before) = room(&mut flight);
        assert!(before.iter().all(|room| *room < 100), "{before:?}");
        for _ in 0..100 {
            let pages = flight.page_list(&[7; 100]);
            step.extend(ROW, 4, pages);
        }
        let plan = flight.launch(step, (0, DepthRange::default()), &mut Slots::new(1));
        let result = StepResult {
            step: plan.step,
            ..StepResult::default()
        };
        flight.recycle_plan(plan);
        let step = flight.take(&result).expect("the oldest step's");
        flight.recycle(step);
        let (_, after) = room(&mut flight);
        assert!(after.iter().all(|room| *room >= 100), "{after:?}");
    }
}

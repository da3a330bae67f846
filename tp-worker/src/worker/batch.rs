//! The ragged batch of a step, in buffers that are reused.

use lockstep_backend::{Batch, Row};
use lockstep_proto::{sampling::TokenLogprob, step::SlotOutput};

use super::{
    Geometry, PlanError, WorkerLimits,
    slots::{RowPlan, Slots},
};

/// What a row of logits is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitUse {
    pub slot: usize,
    /// Which output of the step it goes to.
    pub output: usize,
    /// `None`: sample a token; `Some(p)`: score the prompt's position `p`.
    pub scored: Option<u32>,
}

/// A row that reports something.
#[derive(Debug, Clone, Copy)]
struct OutputPlan {
    slot: usize,
    sampled: bool,
    /// It reports the prompt's position 0, which nothing precedes.
    first_position: bool,
}

/// The batch under construction.
#[derive(Debug)]
pub struct BatchBuffers {
    plans: Vec<RowPlan>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    logit_tokens: Vec<u32>,
    uses: Vec<LogitUse>,
    outputs: Vec<OutputPlan>,
    max_q_len: usize,
    limit: usize,
}

impl BatchBuffers {
    pub fn new(limits: &WorkerLimits) -> Self {
        let (requests, tokens) = (limits.requests, limits.tokens);
        Self {
            plans: Vec::with_capacity(requests),
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            cells: Vec::with_capacity(tokens),
            rows: Vec::with_capacity(requests),
            logit_tokens: Vec::with_capacity(tokens),
            uses: Vec::with_capacity(tokens),
            outputs: Vec::with_capacity(requests),
            max_q_len: 0,
            limit: tokens,
        }
    }

    pub fn clear(&mut self) {
        self.plans.clear();
        self.tokens.clear();
        self.positions.clear();
        self.cells.clear();
        self.rows.clear();
        self.logit_tokens.clear();
        self.uses.clear();
        self.outputs.clear();
        self.max_q_len = 0;
    }

    /// Adds a row. Its pages are checked in [`Self::seal`], once all are granted.
    ///
    /// # Errors
    /// [`PlanError::Geometry`] when the batch outgrows the buffers.
    pub fn push(&mut self, plan: RowPlan, slots: &Slots) -> Result<(), PlanError> {
        let slot = slots.get(plan.slot);
        let (first, end) = (plan.start as usize, plan.start + plan.q_len);
        self.rows.push(Row {
            start: self.tokens.len() as u32,
            q_len: plan.q_len,
            kv_len: plan.start,
            pages_start: slots.pages().start(plan.slot) as u32,
            mask: None,
        });
        self.max_q_len = self.max_q_len.max(plan.q_len as usize);
        self.plans.push(plan);
        if self.tokens.len() + plan.q_len as usize > self.limit {
            let mut geometry = self.geometry();
            geometry.tokens += plan.q_len as usize;
            return Err(PlanError::Geometry(geometry));
        }
        self.tokens
            .extend_from_slice(&slot.tokens[first..end as usize]);
        self.positions.extend(plan.start..end);
        self.want_logits(plan, slots);
        Ok(())
    }

    /// Checks that every row may write where it will, and finds the cells.
    ///
    /// # Errors
    /// [`PlanError::PagesMissing`], [`PlanError::PageShared`].
    pub fn seal(&mut self, slots: &Slots) -> Result<(), PlanError> {
        for plan in &self.plans {
            let range = plan.start..plan.start + plan.q_len;
            slots.pages().check_write(plan.slot, range.clone())?;
            let cells = range.map(|position| slots.pages().cell(plan.slot, position));
            self.cells.extend(cells);
        }
        Ok(())
    }

    /// The shape so far.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            requests: self.rows.len(),
            tokens: self.tokens.len(),
            max_q_len: self.max_q_len,
        }
    }

    /// The batch over the request-to-page table `pages`.
    pub fn batch<'a>(&'a self, pages: &'a [u32]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages,
            logit_tokens: &self.logit_tokens,
            masks: &[],
        }
    }

    /// What each row of logits is for, in order.
    pub fn uses(&self) -> &[LogitUse] {
        &self.uses
    }

    /// One output per sampled or scored row, in the plan's order, with
    /// everything that needs no logits.
    pub fn outputs(&self, slots: &Slots) -> impl Iterator<Item = SlotOutput> {
        self.outputs.iter().map(|output| {
            let first = slots.get(output.slot).tokens.first();
            let first = first.filter(|_| output.first_position);
            SlotOutput {
                slot: output.slot as u32,
                prompt_logprobs: first
                    .map(|token| TokenLogprob {
                        token_id: *token,
                        ..TokenLogprob::default()
                    })
                    .into_iter()
                    .collect(),
                ..SlotOutput::default()
            }
        })
    }

    /// How many tokens are sampled.
    pub fn samples(&self) -> usize {
        self.outputs.iter().filter(|output| output.sampled).count()
    }

    /// Tells the slots what was committed; `sampled` in row order.
    pub fn commit(&self, slots: &mut Slots, sampled: &[u32]) {
        let mut sampled = sampled.iter().copied();
        for plan in &self.plans {
            let token = if plan.sample { sampled.next() } else { None };
            slots.commit(*plan, token);
        }
    }

    /// Notes which of a row's tokens need logits: the one before each scored
    /// prompt position, and the last when a token is sampled. The row's last
    /// token scores the next chunk's first position, so that chunks together
    /// score every position once.
    fn want_logits(&mut self, plan: RowPlan, slots: &Slots) {
        let slot = slots.get(plan.slot);
        let batch_start = self.tokens.len() as u32 - plan.q_len;
        let end = plan.start + plan.q_len;
        let first = slot.logprobs.prompt_start.unwrap_or(u32::MAX);
        let scored = first.max(plan.start + 1)..slot.prompt_len.min(end + 1);
        // Position 0 has no predecessor and is reported without logits.
        let first_position = first == 0 && plan.start == 0 && slot.prompt_len > 0;
        if scored.is_empty() && !first_position && !plan.sample {
            return;
        }
        let output = self.outputs.len();
        self.outputs.push(OutputPlan {
            slot: plan.slot,
            sampled: plan.sample,
            first_position,
        });
        let mut want = |position: u32, scored| {
            self.logit_tokens.push(batch_start + position - plan.start);
            self.uses.push(LogitUse {
                slot: plan.slot,
                output,
                scored,
            });
        };
        for position in scored {
            want(position - 1, Some(position));
        }
        if plan.sample {
            want(end - 1, None);
        }
    }
}

//! The ragged batch of a step, in buffers that are reused.

use lockstep_backend::{Batch, Row};
use lockstep_speculation::{Node, depth, is_chain, push_depths, push_masks};
use lockstep_types::{sampling::TokenLogprob, step::SlotOutput};

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
    pub what: Wanted,
}

/// The uses of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// To score the prompt's token at this position.
    Score(u32),
    /// To choose the token after a node of a row that samples.
    Node {
        /// 0 = the row's own last token, `n` = its `n`-th draft.
        number: u32,
        /// The row's drafts, if it has any.
        drafts: Option<usize>,
        /// No other node of the row follows.
        last: bool,
    },
}

/// A row of the batch, its drafts included.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow {
    pub plan: RowPlan,
    /// Index of its first token.
    pub start: u32,
    /// Its tokens, drafts included.
    pub q_len: u32,
}

/// The drafts of a row.
#[derive(Debug, Clone, Copy)]
pub struct Drafted<'a> {
    /// Its row of the step's drafts.
    pub row: Option<usize>,
    pub nodes: &'a [Node],
}

impl Drafted<'_> {
    pub const NONE: Self = Drafted {
        row: None,
        nodes: &[],
    };
}

/// A row that reports something.
#[derive(Debug, Clone, Copy)]
struct OutputPlan {
    slot: usize,
    /// It reports the prompt's position 0, which nothing precedes.
    first_position: bool,
    draft_depth: u32,
    draft_tokens: u32,
}

/// The batch under construction.
#[derive(Debug)]
pub struct BatchBuffers {
    plans: Vec<BatchRow>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    logit_tokens: Vec<u32>,
    uses: Vec<LogitUse>,
    outputs: Vec<OutputPlan>,
    masks: Vec<u64>,
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
            masks: Vec::new(),
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
        self.masks.clear();
        self.max_q_len = 0;
    }

    /// Adds a row with its drafts. Its pages are checked in [`Self::seal`], once
    /// all are granted.
    ///
    /// # Errors
    /// [`PlanError::Geometry`] when the batch outgrows the buffers.
    pub fn push(
        &mut self,
        plan: RowPlan,
        slots: &Slots,
        drafted: Drafted<'_>,
    ) -> Result<(), PlanError> {
        let slot = slots.get(plan.slot);
        let (first, end) = (plan.start as usize, plan.start + plan.q_len);
        let q_len = plan.q_len + drafted.nodes.len() as u32;
        let start = self.tokens.len() as u32;
        let mut row = Row {
            start,
            q_len,
            kv_len: plan.start,
            pages_start: slots.pages().start(plan.slot) as u32,
            mask: None,
        };
        self.max_q_len = self.max_q_len.max(q_len as usize);
        if self.tokens.len() + q_len as usize > self.limit {
            self.rows.push(row);
            let mut geometry = self.geometry();
            geometry.tokens += q_len as usize;
            return Err(PlanError::Geometry(geometry));
        }
        self.tokens
            .extend_from_slice(&slot.tokens[first..end as usize]);
        self.tokens
            .extend(drafted.nodes.iter().map(|node| node.token));
        if is_chain(drafted.nodes) {
            self.positions.extend(plan.start..plan.start + q_len);
        } else {
            row.mask = Some(self.masks.len() as u32);
            push_masks(drafted.nodes, &mut self.masks);
            push_depths(drafted.nodes, &mut self.positions);
            let positions = &mut self.positions[start as usize..];
            positions
                .iter_mut()
                .for_each(|position| *position += plan.start);
        }
        self.rows.push(row);
        self.plans.push(BatchRow { plan, start, q_len });
        self.want_logits(plan, slots, drafted);
        Ok(())
    }

    /// Checks that every row may write where it will, and finds the cells.
    ///
    /// # Errors
    /// [`PlanError::PagesMissing`], [`PlanError::PageShared`].
    pub fn seal(&mut self, slots: &Slots) -> Result<(), PlanError> {
        for BatchRow { plan, q_len, .. } in &self.plans {
            let range = plan.start..plan.start + q_len;
            slots.pages().check_write(plan.slot, range.clone())?;
            let cells = range.map(|position| slots.pages().cell(plan.slot, position));
            self.cells.extend(cells);
        }
        Ok(())
    }

    /// The rows as they were pushed.
    pub fn rows(&self) -> &[BatchRow] {
        &self.plans
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
            masks: &self.masks,
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
                draft_depth: output.draft_depth,
                draft_tokens: output.draft_tokens,
                ..SlotOutput::default()
            }
        })
    }

    /// Notes which of a row's tokens need logits: the one before each scored
    /// prompt position, and the last when a token is sampled. The row's last
    /// token scores the next chunk's first position, so that chunks together
    /// score every position once.
    fn want_logits(&mut self, plan: RowPlan, slots: &Slots, drafted: Drafted<'_>) {
        let slot = slots.get(plan.slot);
        let drafts = drafted.nodes.len() as u32;
        let batch_start = self.tokens.len() as u32 - plan.q_len - drafts;
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
            first_position,
            draft_depth: depth(drafted.nodes),
            draft_tokens: drafts,
        });
        let mut want = |position: u32, what| {
            self.logit_tokens.push(batch_start + position - plan.start);
            self.uses.push(LogitUse {
                slot: plan.slot,
                output,
                what,
            });
        };
        for position in scored {
            want(position - 1, Wanted::Score(position));
        }
        if plan.sample {
            for number in 0..=drafts {
                let what = Wanted::Node {
                    number,
                    drafts: drafted.row,
                    last: number == drafts,
                };
                want(end - 1 + number, what);
            }
        }
    }
}

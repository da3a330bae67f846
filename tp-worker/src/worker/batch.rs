//! The ragged batch of a step, in buffers that are reused.

use lockstep_backend::{Batch, ChoiceBatch, PassKey, Row};
use lockstep_speculation::{Node, depth, is_chain, push_depths, push_masks};
use lockstep_types::{sampling::TokenLogprob, step::SlotOutput};

use super::{
    PlanError, WorkerLimits,
    slots::{RowTask, Slot, Slots},
};

/// The purpose of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitUse {
    /// The row of the batch.
    pub row: usize,
    pub wanted: Wanted,
}

/// The uses of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Scores the prompt's token at this position.
    Score(u32),
    /// Chooses the token after a node of a row that samples. Node 0 is the row's own last
    /// token, node `n` its `n`-th draft.
    Node(u32),
}

/// The batch under construction.
#[derive(Debug)]
pub struct BatchBuffers {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    cells: Vec<u32>,
    rows: Vec<Row>,
    /// Place of each row's adapter.
    adapters: Vec<Option<u16>>,
    logit_tokens: Vec<u32>,
    uses: Vec<LogitUse>,
    /// Number of rows that report something.
    outputs: usize,
    /// Number of rows that sample.
    choices: usize,
    masks: Vec<u64>,
    max_q_len: usize,
    limit: usize,
}

impl BatchBuffers {
    pub fn new(limits: &WorkerLimits) -> Self {
        let (requests, tokens) = (limits.step.requests, limits.step.tokens);
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            cells: Vec::with_capacity(tokens * limits.groups),
            rows: Vec::with_capacity(requests),
            adapters: Vec::with_capacity(requests),
            logit_tokens: Vec::with_capacity(tokens),
            uses: Vec::with_capacity(tokens),
            outputs: 0,
            choices: 0,
            masks: Vec::new(),
            max_q_len: 0,
            limit: tokens,
        }
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.cells.clear();
        self.rows.clear();
        self.adapters.clear();
        self.logit_tokens.clear();
        self.uses.clear();
        self.outputs = 0;
        self.choices = 0;
        self.masks.clear();
        self.max_q_len = 0;
    }

    /// Adds the row of `task` with its drafts, the `nodes`. [`Self::seal`] checks the row's
    /// pages, once all pages are granted.
    ///
    /// # Errors
    /// [`PlanError::NoPass`] when the batch outgrows the buffers.
    pub fn push(
        &mut self,
        task: &mut RowTask,
        slots: &Slots,
        nodes: &[Node],
    ) -> Result<(), PlanError> {
        let slot = slots.get(task.slot);
        let (first, end) = (task.start as usize, task.start + task.q_len);
        let q_len = task.q_len + nodes.len() as u32;
        let start = self.tokens.len() as u32;
        let mut row = Row {
            start,
            q_len,
            kv_len: task.start,
            pages_start: slots.pages().start(task.slot) as u32,
            mask: None,
        };
        self.max_q_len = self.max_q_len.max(q_len as usize);
        if self.tokens.len() + q_len as usize > self.limit {
            self.rows.push(row);
            let mut key = self.key();
            key.tokens += q_len as usize;
            return Err(PlanError::NoPass(key));
        }
        self.tokens
            .extend_from_slice(&slot.tokens[first..end as usize]);
        self.tokens.extend(nodes.iter().map(|node| node.token));
        if is_chain(nodes) {
            self.positions.extend(task.start..task.start + q_len);
        } else {
            row.mask = Some(self.masks.len() as u32);
            push_masks(nodes, &mut self.masks);
            push_depths(nodes, &mut self.positions);
            let positions = &mut self.positions[start as usize..];
            positions
                .iter_mut()
                .for_each(|position| *position += task.start);
        }
        self.rows.push(row);
        let adapter = slot.generation.adapter;
        self.adapters.push(adapter.map(|adapter| adapter.place));
        task.draft_depth = depth(nodes);
        self.want_logits(task, slot, row);
        Ok(())
    }

    /// Checks that every row may write to its cells, and finds the cells of each group. `tasks`
    /// are the tasks that were pushed.
    ///
    /// # Errors
    /// [`PlanError::PagesMissing`], [`PlanError::PageShared`].
    pub fn seal(&mut self, tasks: &[RowTask], slots: &Slots) -> Result<(), PlanError> {
        let pages = slots.pages();
        let positions =
            |(task, row): (&RowTask, &Row)| (task.slot, task.start..task.start + row.q_len);
        let rows = || tasks.iter().zip(&self.rows).map(positions);
        for (slot, range) in rows() {
            pages.check_write(slot, range)?;
        }
        for group in 0..pages.groups() {
            for (slot, range) in rows() {
                let cells = range.map(|position| pages.cell(group, slot, position));
                self.cells.extend(cells);
            }
        }
        Ok(())
    }

    /// Returns the rows as they were pushed, drafts included.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the size of the batch so far.
    pub fn key(&self) -> PassKey {
        PassKey {
            requests: self.rows.len(),
            tokens: self.tokens.len(),
            max_q_len: self.max_q_len,
        }
    }

    /// Returns the batch. `pages` are the request-to-page tables; `choices` says how tokens are
    /// chosen.
    pub fn batch<'a>(&'a self, pages: &'a [u32], choices: ChoiceBatch<'a>) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cells: &self.cells,
            rows: &self.rows,
            pages,
            logit_tokens: &self.logit_tokens,
            masks: &self.masks,
            states: &[],
            replays: &[],
            keeps: &[],
            adapters: &self.adapters,
            choices,
            chain: None,
            told: None,
        }
    }

    /// Returns the number of rows that sample.
    pub fn choices(&self) -> usize {
        self.choices
    }

    /// Returns the index, in the batch, of the token with the `at`-th wanted logits.
    pub fn wanted(&self, at: usize) -> u32 {
        self.logit_tokens[at]
    }

    /// Returns the purpose of each row of logits, in order.
    pub fn uses(&self) -> &[LogitUse] {
        &self.uses
    }

    /// Returns the number of drafts on the path before the token with the `at`-th wanted
    /// logits. These logits choose a token of `task`.
    pub fn depth(&self, at: usize, task: &RowTask) -> u32 {
        let position = self.positions[self.logit_tokens[at] as usize];
        position - (task.start + task.q_len - 1)
    }

    /// Returns the number of rows that have an output.
    pub fn reporting(&self) -> usize {
        self.outputs
    }

    /// Returns one output per sampled or scored row, in the plan's order. Each has all that
    /// needs no logits.
    pub fn outputs(&self, tasks: &[RowTask], slots: &Slots) -> impl Iterator<Item = SlotOutput> {
        let rows = tasks.iter().zip(&self.rows);
        let reporting = rows.filter(|(task, _)| task.output.is_some());
        reporting.map(|(task, row)| {
            let slot = slots.get(task.slot);
            let first = slot.tokens.first();
            let first = first.filter(|_| reports_first_position(task, slot));
            SlotOutput {
                slot: task.slot as u32,
                prompt_logprobs: first
                    .map(|token| TokenLogprob {
                        token_id: *token,
                        ..TokenLogprob::default()
                    })
                    .into_iter()
                    .collect(),
                draft_depth: task.draft_depth,
                draft_tokens: row.q_len - task.q_len,
                forced_tokens: match task.forced {
                    0 => 0,
                    first => row.q_len - task.q_len + 1 - first,
                },
                ..SlotOutput::default()
            }
        })
    }

    /// Notes the tokens of a row that need logits: the token before each scored prompt
    /// position, and the last token if one is sampled. The row's last token scores the first
    /// position of the next chunk, so that the chunks together score every position once.
    fn want_logits(&mut self, task: &mut RowTask, slot: &Slot, row: Row) {
        let end = task.start + task.q_len;
        let first = slot.generation.logprobs.prompt_start.unwrap_or(u32::MAX);
        let scored = first.max(task.start + 1)..slot.prompt_len.min(end + 1);
        if scored.is_empty() && !reports_first_position(task, slot) && !task.sample {
            return;
        }
        task.output = Some(self.outputs);
        self.outputs += 1;
        let number = self.rows.len() - 1;
        let mut want = |position: u32, wanted| {
            self.logit_tokens.push(row.start + position - task.start);
            self.uses.push(LogitUse {
                row: number,
                wanted,
            });
        };
        for position in scored {
            want(position - 1, Wanted::Score(position));
        }
        if task.sample {
            task.choice = self.choices;
            self.choices += 1;
            for node in 0..=row.q_len - task.q_len {
                want(end - 1 + node, Wanted::Node(node));
            }
        }
    }
}

/// Returns true if the row reports position 0. That position has no predecessor and is reported
/// without logits.
fn reports_first_position(task: &RowTask, slot: &Slot) -> bool {
    slot.generation.logprobs.prompt_start == Some(0) && task.start == 0 && slot.prompt_len > 0
}
